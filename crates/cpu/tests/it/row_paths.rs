//! The paths through the kernels of rows and elements, with their checks.

use girih_cpu::kernels::{QUANT_GROUP, Rotation, Table};
use girih_graph::{Act, Pairing};
use girih_tensor::reference;

use crate::bands::below;
use crate::fixture::{Random, U, gamma};
use crate::path::{KernelPath, Operands, Placed, Tally};
use crate::rows::{edge, exact_gate, exact_layer_norm, unequal_codes, wrong_code};

pub fn paths() -> Vec<KernelPath> {
    let mut paths = vec![
        KernelPath::new("norm".into(), norm),
        KernelPath::new("layer_norm".into(), |table, operands, tally| {
            layer_norm(table, false, operands, tally)
        }),
        KernelPath::new("layer_norm, bias".into(), |table, operands, tally| {
            layer_norm(table, true, operands, tally);
        }),
        KernelPath::new("add".into(), add),
        KernelPath::new("scale".into(), scale),
        KernelPath::new("softcap".into(), softcap),
        KernelPath::new("quantize".into(), quantize),
    ];
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        paths.push(KernelPath::new(format!("rotate {pairing:?}"), move |table, operands, tally| {
            rotate(table, pairing, operands, tally);
        }));
    }
    for &act in Act::ALL {
        paths.push(KernelPath::new(format!("gate {act:?}"), move |table, operands, tally| {
            gate(table, act, operands, tally);
        }));
        paths.push(KernelPath::new(format!("activate {act:?}"), move |table, operands, tally| {
            activate(table, act, operands, tally);
        }));
    }
    paths
}

/// A random length, with any remainder of a vector.
fn length(random: &mut Random) -> usize {
    1 + below(200, random)
}

/// Numbers of many sizes.
fn numbers(count: usize, operands: &mut Operands) -> Placed<f32> {
    scaled(1.0, count, operands)
}

/// As [`numbers`], times a factor.
fn scaled(factor: f32, count: usize, operands: &mut Operands) -> Placed<f32> {
    let mut number = || operands.number() * 2f32.powi((operands.bits() % 40) as i32 - 30) * factor;
    let numbers: Vec<f32> = (0..count).map(|_| number()).collect();
    operands.memory.place(&numbers)
}

fn norm(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let len = length(operands);
    let (x, weight, epsilon) = (numbers(len, operands), operands.numbers(len), 1e-5);
    let root = reference::root_mean_square(&x, f64::from(epsilon));
    let mut y = operands.results(len);
    (table.norm)(&x, &weight, epsilon, &mut y);
    // The sum of squares has one rounding per term and one for the product, and the root halves their
    // error. The mean, epsilon, the root, the quotient and two products follow.
    let relative = gamma(len + 1) / 2.0 + gamma(7);
    for (index, got) in y.iter().enumerate() {
        let expected = f64::from(x[index]) / root * f64::from(weight[index]);
        let bound = relative * expected.abs() + 2f64.powi(-148);
        tally.record(*got, expected, bound, || format!("value {index} of {len}"));
    }
}

fn layer_norm(table: &Table, with_bias: bool, operands: &mut Operands, tally: &mut Tally) {
    let len = length(operands);
    let (x, weight, bias) = (numbers(len, operands), operands.numbers(len), operands.numbers(len));
    let bias = with_bias.then_some(&bias[..]);
    let mut y = operands.results(len);
    (table.layer_norm)(&x, &weight, bias, 1e-5, &mut y);
    for (index, (expected, bound)) in exact_layer_norm(&x, &weight, bias, 1e-5).into_iter().enumerate() {
        tally.record(y[index], expected, bound, || format!("value {index} of {len}"));
    }
}

fn rotate(table: &Table, pairing: Pairing, operands: &mut Operands, tally: &mut Tally) {
    let (pairs, heads) = (1 + below(70, operands), 1 + below(3, operands));
    let [cosines, sines] = [operands.numbers(pairs), operands.numbers(pairs)];
    let x = operands.numbers(2 * pairs * heads);
    let mut y = operands.results(x.len());
    (table.rotate)(&x, Rotation { cosines: &cosines, sines: &sines }, pairing, &mut y);
    for (head, i) in (0..heads).flat_map(|head| (0..pairs).map(move |i| (2 * pairs * head, i))) {
        let (a, b) = match pairing {
            Pairing::Halves => (head + i, head + i + pairs),
            Pairing::Neighbours => (head + 2 * i, head + 2 * i + 1),
        };
        let [u, v, c, s] = [x[a], x[b], cosines[i], sines[i]].map(f64::from);
        for (got, first, second) in [(y[a], u * c, -v * s), (y[b], u * s, v * c)] {
            let bound = gamma(2) * (first.abs() + second.abs()) + 2f64.powi(-148);
            tally.record(got, first + second, bound, || format!("pair {i} of {pairs}"));
        }
    }
}

fn gate(table: &Table, act: Act, operands: &mut Operands, tally: &mut Tally) {
    let len = length(operands);
    let gates = scaled(0.1, len, operands);
    let ups = operands.numbers(len);
    let mut y = operands.results(len);
    (table.gate)(act, &gates, &ups, &mut y);
    for ((gate, up), got) in gates.iter().zip(ups.iter()).zip(y.iter()) {
        let (expected, bound) = exact_gate(act, *gate, *up);
        tally.record(*got, expected, bound, || format!("{gate} and {up}"));
    }
}

fn activate(table: &Table, act: Act, operands: &mut Operands, tally: &mut Tally) {
    let x = scaled(0.1, length(operands), operands);
    let mut y = operands.results(x.len());
    (table.activate)(act, &x, &mut y);
    for (x, got) in x.iter().zip(y.iter()) {
        let (expected, bound) = exact_gate(act, *x, 1.0);
        tally.record(*got, expected, bound, || format!("{x}"));
    }
}

fn add(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let len = length(operands);
    let (a, b) = (numbers(len, operands), numbers(len, operands));
    let mut y = operands.results(len);
    (table.add)(&a, &b, &mut y);
    for ((a, b), got) in a.iter().zip(b.iter()).zip(y.iter()) {
        let expected = f64::from(*a) + f64::from(*b);
        tally.record(*got, expected, U * expected.abs(), || format!("{a} + {b}"));
    }
}

fn scale(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let len = length(operands);
    let (x, factor) = (numbers(len, operands), operands.number());
    let mut y = operands.results(len);
    (table.scale)(&x, factor, &mut y);
    for (x, got) in x.iter().zip(y.iter()) {
        let expected = f64::from(*x) * f64::from(factor);
        tally.record(*got, expected, U * expected.abs() + 2f64.powi(-150), || format!("{x} times {factor}"));
    }
}

/// A quotient, a tanh with an error of three ulp, and a product.
fn softcap(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let x = numbers(length(operands), operands);
    let cap = 0.5 + 40.0 * operands.number().abs();
    let mut y = operands.memory.place(&x);
    (table.softcap)(&mut y, cap);
    for (x, got) in x.iter().zip(y.iter()) {
        let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
        let bound = gamma(8) * expected.abs() + f64::from(cap) * 2f64.powi(-148);
        tally.record(*got, expected, bound, || format!("{x} capped by {cap}"));
    }
}

fn quantize(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let memory = operands.memory;
    let groups = 1 + below(8, operands);
    for x in [numbers(QUANT_GROUP * groups, operands), memory.place(&edge(operands))] {
        let fault = wrong_code(table, &x, memory).or_else(|| unequal_codes(table, &x, memory));
        tally.record_exact(x.len(), fault);
    }
}
