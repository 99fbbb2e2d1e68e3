//! The paths through the kernels of rows and elements, with their checks.

use girih_cpu::kernels::{QUANT_GROUP, Rotation, Table};
use girih_graph::{Act, Pairing};
use girih_tensor::reference;

use crate::bands::below;
use crate::fixture::{Random, U, gamma};
use crate::path::{KernelPath, Tally};
use crate::rows::{edge, exact_gate, exact_layer_norm, unequal_codes, wrong_code};

pub fn paths() -> Vec<KernelPath> {
    let mut paths = vec![
        KernelPath::new("norm".into(), norm),
        KernelPath::new("layer_norm".into(), |table, random, tally| layer_norm(table, false, random, tally)),
        KernelPath::new("layer_norm, bias".into(), |table, random, tally| {
            layer_norm(table, true, random, tally);
        }),
        KernelPath::new("add".into(), add),
        KernelPath::new("scale".into(), scale),
        KernelPath::new("softcap".into(), softcap),
        KernelPath::new("quantize".into(), quantize),
    ];
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        paths.push(KernelPath::new(format!("rotate {pairing:?}"), move |table, random, tally| {
            rotate(table, pairing, random, tally);
        }));
    }
    for &act in Act::ALL {
        paths.push(KernelPath::new(format!("gate {act:?}"), move |table, random, tally| {
            gate(table, act, random, tally);
        }));
        paths.push(KernelPath::new(format!("activate {act:?}"), move |table, random, tally| {
            activate(table, act, random, tally);
        }));
    }
    paths
}

/// A random length, with any remainder of a vector.
fn length(random: &mut Random) -> usize {
    1 + below(200, random)
}

/// Numbers of many sizes.
fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.number() * 2f32.powi((random.bits() % 40) as i32 - 30)).collect()
}

fn norm(table: &Table, random: &mut Random, tally: &mut Tally) {
    let len = length(random);
    let (x, weight, epsilon) = (numbers(len, random), random.numbers(len), 1e-5);
    let root = reference::root_mean_square(&x, f64::from(epsilon));
    let mut y = vec![f32::NAN; len];
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

fn layer_norm(table: &Table, with_bias: bool, random: &mut Random, tally: &mut Tally) {
    let len = length(random);
    let (x, weight, bias) = (numbers(len, random), random.numbers(len), random.numbers(len));
    let bias = with_bias.then_some(&bias[..]);
    let mut y = vec![f32::NAN; len];
    (table.layer_norm)(&x, &weight, bias, 1e-5, &mut y);
    for (index, (expected, bound)) in exact_layer_norm(&x, &weight, bias, 1e-5).into_iter().enumerate() {
        tally.record(y[index], expected, bound, || format!("value {index} of {len}"));
    }
}

fn rotate(table: &Table, pairing: Pairing, random: &mut Random, tally: &mut Tally) {
    let (pairs, heads) = (1 + below(70, random), 1 + below(3, random));
    let [cosines, sines] = [random.numbers(pairs), random.numbers(pairs)];
    let x = random.numbers(2 * pairs * heads);
    let mut y = vec![f32::NAN; x.len()];
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

fn gate(table: &Table, act: Act, random: &mut Random, tally: &mut Tally) {
    let len = length(random);
    let gates: Vec<f32> = numbers(len, random).iter().map(|x| x * 0.1).collect();
    let ups = random.numbers(len);
    let mut y = vec![f32::NAN; len];
    (table.gate)(act, &gates, &ups, &mut y);
    for ((gate, up), got) in gates.iter().zip(&ups).zip(&y) {
        let (expected, bound) = exact_gate(act, *gate, *up);
        tally.record(*got, expected, bound, || format!("{gate} and {up}"));
    }
}

fn activate(table: &Table, act: Act, random: &mut Random, tally: &mut Tally) {
    let x: Vec<f32> = numbers(length(random), random).iter().map(|x| x * 0.1).collect();
    let mut y = vec![f32::NAN; x.len()];
    (table.activate)(act, &x, &mut y);
    for (x, got) in x.iter().zip(&y) {
        let (expected, bound) = exact_gate(act, *x, 1.0);
        tally.record(*got, expected, bound, || format!("{x}"));
    }
}

fn add(table: &Table, random: &mut Random, tally: &mut Tally) {
    let len = length(random);
    let (a, b) = (numbers(len, random), numbers(len, random));
    let mut y = vec![f32::NAN; len];
    (table.add)(&a, &b, &mut y);
    for ((a, b), got) in a.iter().zip(&b).zip(&y) {
        let expected = f64::from(*a) + f64::from(*b);
        tally.record(*got, expected, U * expected.abs(), || format!("{a} + {b}"));
    }
}

fn scale(table: &Table, random: &mut Random, tally: &mut Tally) {
    let len = length(random);
    let (x, factor) = (numbers(len, random), random.number());
    let mut y = vec![f32::NAN; len];
    (table.scale)(&x, factor, &mut y);
    for (x, got) in x.iter().zip(&y) {
        let expected = f64::from(*x) * f64::from(factor);
        tally.record(*got, expected, U * expected.abs() + 2f64.powi(-150), || format!("{x} times {factor}"));
    }
}

/// A quotient, a tanh with an error of three ulp, and a product.
fn softcap(table: &Table, random: &mut Random, tally: &mut Tally) {
    let x = numbers(length(random), random);
    let cap = 0.5 + 40.0 * random.number().abs();
    let mut y = x.clone();
    (table.softcap)(&mut y, cap);
    for (x, got) in x.iter().zip(&y) {
        let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
        let bound = gamma(8) * expected.abs() + f64::from(cap) * 2f64.powi(-148);
        tally.record(*got, expected, bound, || format!("{x} capped by {cap}"));
    }
}

fn quantize(table: &Table, random: &mut Random, tally: &mut Tally) {
    for x in [numbers(QUANT_GROUP * (1 + below(8, random)), random), edge(random)] {
        tally.record_exact(x.len(), wrong_code(table, &x).or_else(|| unequal_codes(table, &x)));
    }
}
