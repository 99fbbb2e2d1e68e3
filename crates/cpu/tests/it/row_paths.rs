//! The paths through the kernels of rows and elements, with their checks. Each takes the function that runs the
//! kernel, so that a wrong one is checked in the same way.

use girih_cpu::kernels::{QUANT_GROUP, Table};
use girih_cpu::ops::{Activate, Add, Gate, LayerNorm, Norm, Rotate, Rotation, Scale, Softcap};
use girih_graph::{Act, Pairing};
use girih_tensor::reference;

use crate::bands::below;
use crate::fixture::{Random, U, gamma};
use crate::path::{KernelPath, Operands, Placed, Tally};
use crate::rows::{edge, exact_gate, exact_layer_norm, unequal_codes, wrong_code};

pub fn paths() -> Vec<KernelPath> {
    let mut paths = vec![
        norm(|table, kernel| table.run(kernel)),
        layer_norm(false, |table, kernel| table.run(kernel)),
        layer_norm(true, |table, kernel| table.run(kernel)),
        add(|table, kernel| table.run(kernel)),
        scale(|table, kernel| table.run(kernel)),
        softcap(|table, kernel| table.run(kernel)),
        KernelPath::new("quantize".into(), quantize),
    ];
    paths.extend(PAIRINGS.map(|pairing| rotate(pairing, |table, kernel| table.run(kernel))));
    for &act in Act::ALL {
        paths.push(gate(act, |table, kernel| table.run(kernel)));
        paths.push(activate(act, |table, kernel| table.run(kernel)));
    }
    paths
}

/// The ways of pairing the values of a head.
pub const PAIRINGS: [Pairing; 2] = [Pairing::Halves, Pairing::Neighbours];

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

pub fn norm(run: fn(&Table, Norm<'_>)) -> KernelPath {
    KernelPath::new("norm".into(), move |table, operands, tally| {
        let len = length(operands);
        let (x, weight, epsilon) = (numbers(len, operands), operands.numbers(len), 1e-5);
        let root = reference::root_mean_square(&x, f64::from(epsilon));
        let mut y = operands.results(len);
        run(table, Norm { x: &x, weight: &weight, epsilon, y: &mut y });
        // The sum of squares has one rounding per term and one for the product, and the root halves their
        // error. The mean, epsilon, the root, the quotient and two products follow.
        let relative = gamma(len + 1) / 2.0 + gamma(7);
        for (index, got) in y.iter().enumerate() {
            let expected = f64::from(x[index]) / root * f64::from(weight[index]);
            let bound = relative * expected.abs() + 2f64.powi(-148);
            tally.record(*got, expected, bound, || format!("value {index} of {len}"));
        }
    })
}

pub fn layer_norm(with_bias: bool, run: fn(&Table, LayerNorm<'_>)) -> KernelPath {
    let name = if with_bias { "layer_norm, bias" } else { "layer_norm" };
    KernelPath::new(name.into(), move |table, operands, tally| {
        let (len, epsilon) = (length(operands), 1e-5);
        let (x, weight, bias) = (numbers(len, operands), operands.numbers(len), operands.numbers(len));
        let bias = with_bias.then_some(&bias[..]);
        let mut y = operands.results(len);
        run(table, LayerNorm { x: &x, weight: &weight, bias, epsilon, y: &mut y });
        let exact = exact_layer_norm(&x, &weight, bias, epsilon);
        for (index, (expected, bound)) in exact.into_iter().enumerate() {
            tally.record(y[index], expected, bound, || format!("value {index} of {len}"));
        }
    })
}

pub fn rotate(pairing: Pairing, run: fn(&Table, Rotate<'_>)) -> KernelPath {
    KernelPath::new(format!("rotate {pairing:?}"), move |table, operands, tally| {
        let (pairs, heads) = (1 + below(70, operands), 1 + below(3, operands));
        let [cosines, sines] = [operands.numbers(pairs), operands.numbers(pairs)];
        let x = operands.numbers(2 * pairs * heads);
        let mut y = operands.results(x.len());
        let rotation = Rotation { cosines: &cosines, sines: &sines };
        run(table, Rotate { x: &x, rotation, pairing, y: &mut y });
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
    })
}

pub fn gate(act: Act, run: fn(&Table, Gate<'_>)) -> KernelPath {
    KernelPath::new(format!("gate {act:?}"), move |table, operands, tally| {
        let len = length(operands);
        let (gates, ups) = (scaled(0.1, len, operands), operands.numbers(len));
        let mut y = operands.results(len);
        run(table, Gate { act, gate: &gates, up: &ups, y: &mut y });
        for ((gate, up), got) in gates.iter().zip(ups.iter()).zip(y.iter()) {
            let (expected, bound) = exact_gate(act, *gate, *up);
            tally.record(*got, expected, bound, || format!("{gate} and {up}"));
        }
    })
}

pub fn activate(act: Act, run: fn(&Table, Activate<'_>)) -> KernelPath {
    KernelPath::new(format!("activate {act:?}"), move |table, operands, tally| {
        let x = scaled(0.1, length(operands), operands);
        let mut y = operands.results(x.len());
        run(table, Activate { act, x: &x, y: &mut y });
        for (x, got) in x.iter().zip(y.iter()) {
            let (expected, bound) = exact_gate(act, *x, 1.0);
            tally.record(*got, expected, bound, || format!("{x}"));
        }
    })
}

pub fn add(run: fn(&Table, Add<'_>)) -> KernelPath {
    KernelPath::new("add".into(), move |table, operands, tally| {
        let len = length(operands);
        let (a, b) = (numbers(len, operands), numbers(len, operands));
        let mut y = operands.results(len);
        run(table, Add { a: &a, b: &b, y: &mut y });
        for ((a, b), got) in a.iter().zip(b.iter()).zip(y.iter()) {
            let expected = f64::from(*a) + f64::from(*b);
            tally.record(*got, expected, U * expected.abs(), || format!("{a} + {b}"));
        }
    })
}

pub fn scale(run: fn(&Table, Scale<'_>)) -> KernelPath {
    KernelPath::new("scale".into(), move |table, operands, tally| {
        let (x, factor) = (numbers(length(operands), operands), operands.number());
        let mut y = operands.results(x.len());
        run(table, Scale { x: &x, factor, y: &mut y });
        for (x, got) in x.iter().zip(y.iter()) {
            let expected = f64::from(*x) * f64::from(factor);
            let bound = U * expected.abs() + 2f64.powi(-150);
            tally.record(*got, expected, bound, || format!("{x} times {factor}"));
        }
    })
}

/// A quotient, a tanh with an error of three ulp, and a product.
pub fn softcap(run: fn(&Table, Softcap<'_>)) -> KernelPath {
    KernelPath::new("softcap".into(), move |table, operands, tally| {
        let x = numbers(length(operands), operands);
        let cap = 0.5 + 40.0 * operands.number().abs();
        let mut y = operands.results(x.len());
        run(table, Softcap { x: &x, cap, y: &mut y });
        for (x, got) in x.iter().zip(y.iter()) {
            let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
            let bound = gamma(8) * expected.abs() + f64::from(cap) * 2f64.powi(-148);
            tally.record(*got, expected, bound, || format!("{x} capped by {cap}"));
        }
    })
}

fn quantize(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let memory = operands.memory;
    let groups = 1 + below(8, operands);
    for x in [numbers(QUANT_GROUP * groups, operands), memory.place(&edge(operands))] {
        let fault = wrong_code(table, &x, memory).or_else(|| unequal_codes(table, &x, memory));
        tally.record_exact(x.len(), fault);
    }
}
