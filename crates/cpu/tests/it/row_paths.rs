//! The paths through the kernels of rows and elements, with their checks. Each takes the function that runs the
//! kernel, so that a wrong one is checked in the same way.

use girih_cpu::kernels::{QUANT_GROUP, Table};
use girih_cpu::ops::{Activate, Add, ApplyXielu, Gate, LayerNorm, Norm, Rotate, Rotation, Scale, Softcap};
use girih_graph::{Act, GateRule, Pairing, Xielu};
use girih_tensor::reference;

use crate::bands::below;
use crate::fixture::{Random, U, gamma};
use crate::path::{KernelPath, Operands, Placed, Tally};
use crate::rows::{edge, exact_gate, exact_layer_norm, unequal_codes, wrong_code};

pub fn paths() -> Vec<KernelPath> {
    let mut paths = vec![
        norm(false, |table, kernel| table.run(kernel)),
        norm(true, |table, kernel| table.run(kernel)),
        layer_norm([false, false], |table, kernel| table.run(kernel)),
        layer_norm([true, false], |table, kernel| table.run(kernel)),
        layer_norm([true, true], |table, kernel| table.run(kernel)),
        add(|table, kernel| table.run(kernel)),
        scale(|table, kernel| table.run(kernel)),
        softcap(|table, kernel| table.run(kernel)),
        xielu(|table, kernel| table.run(kernel)),
        KernelPath::new("quantize".into(), quantize),
    ];
    paths.extend(PAIRINGS.map(|pairing| rotate(pairing, |table, kernel| table.run(kernel))));
    for &act in Act::ALL {
        for rule in [act.into(), GateRule { act, limit: Some(0.5), offset: Some(1.0) }] {
            paths.push(gate(rule, |table, kernel| table.run(kernel)));
        }
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

pub fn norm(with_weight: bool, run: fn(&Table, Norm<'_>)) -> KernelPath {
    let name = if with_weight { "norm" } else { "norm, no weight" };
    KernelPath::new(name.into(), move |table, operands, tally| {
        let len = length(operands);
        let (x, weight, epsilon) = (numbers(len, operands), operands.numbers(len), 1e-5);
        let root = reference::root_mean_square(&x, f64::from(epsilon));
        let mut y = operands.results(len);
        let weight = with_weight.then_some(&weight[..]);
        run(table, Norm { x: &x, weight, epsilon, y: &mut y });
        // The sum of squares has one rounding per term and one for the product, and the root halves their
        // error. The mean, epsilon, the root, the quotient and two products follow.
        let relative = gamma(len + 1) / 2.0 + gamma(7);
        for (index, got) in y.iter().enumerate() {
            let expected = f64::from(x[index]) / root * weight.map_or(1.0, |weight| f64::from(weight[index]));
            let bound = relative * expected.abs() + 2f64.powi(-148);
            tally.record(*got, expected, bound, || format!("value {index} of {len}"));
        }
    })
}

pub fn layer_norm(with: [bool; 2], run: fn(&Table, LayerNorm<'_>)) -> KernelPath {
    let [with_weight, with_bias] = with;
    let name = format!("layer_norm, weight: {with_weight}, bias: {with_bias}");
    KernelPath::new(name, move |table, operands, tally| {
        let (len, epsilon) = (length(operands), 1e-5);
        let (x, weight, bias) = (numbers(len, operands), operands.numbers(len), operands.numbers(len));
        let (weight, bias) = (with_weight.then_some(&weight[..]), with_bias.then_some(&bias[..]));
        let mut y = operands.results(len);
        run(table, LayerNorm { x: &x, weight, bias, epsilon, y: &mut y });
        let exact = exact_layer_norm(&x, [weight, bias], epsilon);
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

pub fn gate(rule: GateRule, run: fn(&Table, Gate<'_>)) -> KernelPath {
    KernelPath::new(format!("gate {rule:?}"), move |table, operands, tally| {
        let len = length(operands);
        let (gates, ups) = (scaled(0.1, len, operands), operands.numbers(len));
        let mut y = operands.results(len);
        run(table, Gate { rule, gate: &gates, up: &ups, y: &mut y });
        for ((gate, up), got) in gates.iter().zip(ups.iter()).zip(y.iter()) {
            let (expected, bound) = exact_gate(rule, *gate, *up);
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
            let (expected, bound) = exact_gate(act.into(), *x, 1.0);
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

/// The exponential less one has an error of eight roundings; the difference, its product, the linear term
/// and the sum follow. Each term is a size of its own, as the difference cancels near zero.
pub fn exact_xielu(xielu: Xielu, x: f32) -> (f64, f64) {
    let [positive, negative, beta, epsilon] =
        [xielu.positive, xielu.negative, xielu.beta, xielu.epsilon].map(f64::from);
    let x = f64::from(x);
    let power = x.min(epsilon).exp_m1();
    let (curve, size) = match x > 0.0 {
        true => (positive * x * x, positive.abs() * x * x),
        false => ((power - x) * negative, (power.abs() + x.abs()) * negative.abs()),
    };
    (curve + beta * x, gamma(11) * (size + (beta * x).abs()) + 2f64.powi(-148))
}

pub fn xielu(run: fn(&Table, ApplyXielu<'_>)) -> KernelPath {
    KernelPath::new("xielu".into(), move |table, operands, tally| {
        let x = scaled(0.1, length(operands), operands);
        let [positive, negative, beta] = [(); 3].map(|()| operands.number());
        let xielu = Xielu { positive, negative, beta, epsilon: -1e-6 };
        let mut y = operands.results(x.len());
        run(table, ApplyXielu { xielu, x: &x, y: &mut y });
        for (x, got) in x.iter().zip(y.iter()) {
            let (expected, bound) = exact_xielu(xielu, *x);
            tally.record(*got, expected, bound, || format!("{x}"));
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
