//! Cases of ops that compute element by element.

use girih_tensor::DType;

use super::case::Case;
use super::draft::{Begin, CaseDraft, Numbers};
use super::roundoff::{GeluForm, Roundoff, TINY};
use crate::constant::{Act, GateLimit, GateRule, Xielu};
use crate::ops::{Op, OpName};

/// Numbers around the thresholds of functions.
const EDGES: [f32; 20] = [
    0.0, 1e-45, 1e-38, 1e-20, 1e-7, 0.1733, 0.3466, 1.0, 8.66, 9.01, 10.1, 20.0, 86.0, 87.4, 88.0, 88.73,
    89.0, 100.0, 1e4, 1e9,
];

impl CaseDraft {
    /// An input with edges of functions among its numbers, of one or of two inner dimensions.
    fn elements(&mut self, name: &str, inner: &[usize]) -> Numbers {
        let count = self.rows() * inner.iter().product::<usize>();
        let numbers = (0..count).map(|_| match self.random.below(3) {
            0 => self.random.of(&EDGES) * self.random.of(&[1.0, -1.0]),
            _ => self.random.number() * 2f32.powi(self.random.below(24) as i32 - 16),
        });
        let numbers = numbers.collect();
        self.input_rows(name, inner, numbers)
    }

    /// The inner dimensions of elements. Some cases have more than one piece of work.
    fn inner(&mut self) -> Vec<usize> {
        match self.random.below(12) {
            0 => vec![2000],
            1..4 => vec![1 + self.random.below(4), self.columns()],
            _ => vec![self.columns()],
        }
    }
}

/// One rounding of the sum.
pub(super) fn add(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Add, seed, round, Begin::Anywhere);
    let inner = draft.inner();
    let ((a, x), (b, y)) = (draft.elements("a", &inner), draft.elements("b", &inner));
    let bounds = x.iter().zip(&y).map(|(x, y)| round.gamma(1) * (f64::from(*x) + f64::from(*y)).abs());
    let bounds = bounds.collect();
    let sum = draft.builder.same("y", Op::Add, &[a, b]);
    draft.gathered(format!("{inner:?}"), sum, bounds)
}

/// One rounding of the product.
pub(super) fn scale(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Scale, seed, round, Begin::Anywhere);
    let (inner, factor) = (draft.inner(), draft.random.of(&[0.3, -1.7, 45.25, 1.0, 0.0]));
    let (x, numbers) = draft.elements("x", &inner);
    let bound = |x: &f32| round.gamma(1) * f64::from((x * factor).abs()) + TINY;
    let bounds = numbers.iter().map(bound).collect();
    let y = draft.builder.same("y", Op::Scale { factor }, &[x]);
    draft.gathered(format!("{inner:?} by {factor}"), y, bounds)
}

/// One rounding of the product. Some of the numbers are 0.
pub(super) fn scale_columns(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::ScaleColumns, seed, round, Begin::Anywhere);
    let inner = draft.inner();
    let columns = inner[inner.len() - 1];
    let (x, numbers) = draft.elements("x", &inner);
    let (weight, weights) = draft.weight("weight", &[columns], DType::F32);
    let bound = |(x, weight): (&f32, &f32)| round.gamma(1) * f64::from((x * weight).abs()) + TINY;
    let bounds = numbers.iter().zip(weights.iter().cycle()).map(bound).collect();
    let y = draft.builder.same("y", Op::ScaleColumns, &[x, weight]);
    draft.gathered(format!("{inner:?}"), y, bounds)
}

/// One rounding of the difference.
pub(super) fn shift_columns(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::ShiftColumns, seed, round, Begin::Anywhere);
    let inner = draft.inner();
    let columns = inner[inner.len() - 1];
    let (x, numbers) = draft.elements("x", &inner);
    let (shift, shifts) = draft.weight("shift", &[columns], DType::F32);
    let bound = |(x, shift): (&f32, &f32)| round.gamma(1) * f64::from((x - shift).abs()) + TINY;
    let bounds = numbers.iter().zip(shifts.iter().cycle()).map(bound).collect();
    let y = draft.builder.same("y", Op::ShiftColumns, &[x, shift]);
    draft.gathered(format!("{inner:?}"), y, bounds)
}

/// A quotient, a tanh with an error of three ulp (six roundings), and a product.
pub(super) fn softcap(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Softcap, seed, round, Begin::Anywhere);
    let (inner, cap) = (draft.inner(), draft.random.of(&[0.5f32, 1.0, 15.0, 30.0, 50.0]));
    let (x, numbers) = draft.elements("x", &inner);
    let bound = |x: &f32| {
        let exact = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
        round.gamma(8) * exact.abs() + f64::from(cap) * TINY
    };
    let bounds = numbers.iter().map(bound).collect();
    let y = draft.builder.same("y", Op::Softcap { cap }, &[x]);
    draft.gathered(format!("{inner:?} capped by {cap}"), y, bounds)
}

/// No rounding. Some bounds are equal.
pub(super) fn clamp(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Clamp, seed, round, Begin::Anywhere);
    let (inner, low) = (draft.inner(), draft.random.of(&[-15.5f32, -1.0, -0.25, 0.0]));
    let high = low + draft.random.of(&[0.0, 0.5, 20.0]);
    let (x, numbers) = draft.elements("x", &inner);
    let y = draft.builder.same("y", Op::Clamp { low, high }, &[x]);
    draft.gathered(format!("{inner:?} within {low} and {high}"), y, vec![0.0; numbers.len()])
}

/// A butterfly rounds each number once in each of its stages; the root and the product follow.
pub(super) fn hadamard(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Hadamard, seed, round, Begin::Anywhere);
    let size = draft.in_turn(&[2, 4, 8, 16, 32, 64, 128, 256]);
    let inner = [1 + draft.random.below(3), size * (1 + draft.random.below(3))];
    let (x, numbers) = draft.any_rows("x", &inner);
    let relative = round.gamma(size.ilog2() as usize + 2) / (size as f64).sqrt();
    let bounds = numbers.chunks_exact(size).flat_map(|block| {
        let sizes: f64 = block.iter().map(|x| f64::from(x.abs())).sum();
        std::iter::repeat_n(relative * sizes + TINY, size)
    });
    let bounds = bounds.collect();
    let y = draft.builder.same("y", Op::Hadamard { size: size as u32 }, &[x]);
    draft.gathered(format!("{inner:?} in blocks of {size}"), y, bounds)
}

/// The bound of `act(gate) · up` by a rule.
///
/// - The exponential has an error of 1.02 ulp, less than three roundings; a sum, a quotient and a product
///   follow. If the exponential overflows `f32`, a quotient below 2⁻¹²¹ is lost.
/// - The argument of the exponential in GELU's tanh form has four roundings of its own, that of its sigmoid form
///   two; an absolute error of the argument becomes a relative error of the exponential, and so at most that of
///   the result.
/// - GELU by erf has an error of 6.11 ulp, less than 13 roundings, and a product follows. The definitions of
///   GELU cancel in `f64` where erf or tanh is near −1. Where a backend's tanh form cancels, too, the error of the
///   tanh, three ulp (six roundings), is one of the sum.
/// - Softplus has the exponential, a sum, a quotient, the square and the rest of its series, the double, a
///   product that is added to x, and the product with `up`.
/// - A limit is exact, and an offset adds a rounding.
fn gate_bound(rule: GateRule, gate: f32, up: f32, round: Roundoff) -> f64 {
    let GateRule { act, limit, offset } = rule;
    let bound = limit.map_or(f64::INFINITY, |limit| f64::from(limit.bound()));
    let (x, most) = match limit {
        // Beyond twice the bound, no error of an activation changes a result.
        Some(GateLimit::Activated(_)) => (f64::from(gate), 2.0 * bound),
        Some(GateLimit::Gate(_)) | None => (f64::from(gate).min(bound), f64::INFINITY),
    };
    let up = f64::from(up).clamp(-bound, bound);
    let up = up + f64::from(offset.unwrap_or(0.0));
    let twice = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    let of_argument =
        |argument: f64, roundings| (argument.abs().min(100.0) * round.gamma(roundings)).exp_m1();
    let (relative, cancelled) = match act {
        Act::Silu | Act::Sigmoid => (round.gamma(6), 0.0),
        Act::GeluTanh => {
            let of_tanh = match round.gelu {
                GeluForm::Sigmoid => 0.0,
                GeluForm::Tanh => round.gamma(6) / 2.0,
            };
            (round.gamma(6) + of_argument(twice, 4), (4.0 * f64::EPSILON + of_tanh) * x.abs())
        }
        Act::Gelu => {
            // A sum with 1 that cancels has the unit roundoff of 1, too.
            let of_sum = if round.erf > 0.0 { round.erf + round.gamma(2) } else { 0.0 };
            // The definition's erf of x/√2 has an exponential of the square x²/2, whose three roundings are its
            // relative error; half of it is left. Beyond 6√2 it is exact.
            let of_square = 0.375 * (x * x).min(72.0);
            (round.gamma(14), ((4.0 + of_square) * f64::EPSILON + of_sum / 2.0) * x.abs())
        }
        Act::QuickGelu => (round.gamma(6) + of_argument(1.702 * x, 2), 0.0),
        Act::Softplus => (round.gamma(11), 0.0),
        Act::Relu | Act::Identity => (round.gamma(1), 0.0),
        Act::Relu2 => (round.gamma(2), 0.0),
    };
    let relative = relative + offset.map_or(0.0, |_| round.gamma(1));
    relative * act.of(x).abs().min(most) * up.abs() + (cancelled + 2f64.powi(-121)) * up.abs() + TINY
}

/// A gate, whose other operand is so small that no product overflows.
pub(super) fn gate(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Gate, seed, round, Begin::Anywhere);
    let (inner, act) = (draft.inner(), draft.in_turn(Act::ALL));
    let (limit, offset) = draft.random.of(&[
        (None, None),
        (Some(GateLimit::Gate(1.5)), None),
        (Some(GateLimit::Gate(0.5)), Some(1.0)),
        (Some(GateLimit::Activated(0.5)), None),
    ]);
    let (gate, gates) = draft.elements("gate", &inner);
    let ups = gates.iter().map(|gate| draft.random.number() * 2.0 / gate.abs().max(1.0)).collect();
    let (up, ups) = draft.input_rows("up", &inner, ups);
    let rule = GateRule { act, limit, offset };
    let bounds = gates.iter().zip(&ups).map(|(gate, up)| gate_bound(rule, *gate, *up, round)).collect();
    let y = draft.builder.same("y", Op::Gate { act, limit, offset }, &[gate, up]);
    draft.gathered(format!("{inner:?} {rule:?}"), y, bounds)
}

/// A gate of each element whose gate is that of its head.
pub(super) fn gate_heads(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::GateHeads, seed, round, Begin::Anywhere);
    let (heads, size, act) = (1 + draft.random.below(5), draft.columns(), draft.in_turn(Act::ALL));
    let (gate, gates) = draft.elements("gate", &[heads]);
    let values = gates.iter().flat_map(|gate| std::iter::repeat_n(gate.abs().max(1.0), size));
    let values = values.map(|largest| draft.random.number() * 2.0 / largest).collect();
    let (x, values) = draft.input_rows("x", &[heads, size], values);
    let pairs = gates.iter().zip(values.chunks_exact(size));
    let of_head = |(gate, x): (&f32, &'_ [f32])| {
        x.iter().map(|x| gate_bound(act.into(), *gate, *x, round)).collect::<Vec<f64>>()
    };
    let bounds = pairs.flat_map(of_head).collect();
    let y = draft.builder.shaped("y", Op::GateHeads { act }, &[gate, x], &[heads, size]);
    draft.gathered(format!("{heads} heads of {size}, {act:?}"), y, bounds)
}

/// A product and a sum for each head.
pub(super) fn mix_heads(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::MixHeads, seed, round, Begin::Anywhere);
    let (heads, size) = (1 + draft.random.below(5), draft.columns());
    let (weights, of_heads) = draft.rows_within(2.0, "weights", &[heads]);
    let (x, numbers) = draft.any_rows("x", &[heads, size]);
    let rows = of_heads.chunks_exact(heads).zip(numbers.chunks_exact(heads * size));
    let bound = |(weights, x): (&[f32], &[f32]), column: usize| {
        let of_row = weights.iter().zip(x.chunks_exact(size));
        let terms = of_row.map(|(weight, head)| f64::from((weight * head[column]).abs()));
        round.gamma(heads + 1) * terms.sum::<f64>() + TINY
    };
    let bounds = rows.flat_map(|row| (0..size).map(move |column| bound(row, column))).collect();
    let y = draft.builder.shaped("y", Op::MixHeads, &[weights, x], &[size]);
    draft.gathered(format!("{heads} heads of {size}"), y, bounds)
}

/// Exact, but for a store.
pub(super) fn concat(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Concat, seed, round, Begin::Anywhere);
    let (heads, first, second) = (1 + draft.random.below(5), draft.columns(), draft.columns());
    let ((a, x), (b, y)) = (draft.elements("a", &[heads, first]), draft.elements("b", &[heads, second]));
    let parts = x.chunks_exact(first).zip(y.chunks_exact(second)).flat_map(|(a, b)| [a, b]);
    let bounds = parts.flatten().map(|x| round.stored * f64::from(x.abs()) + TINY).collect();
    let y = draft.builder.shaped("y", Op::Concat, &[a, b], &[heads, first + second]);
    draft.gathered(format!("{heads} heads of {first} and {second}"), y, bounds)
}

/// An activation is a gate of ones.
pub(super) fn activate(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Activate, seed, round, Begin::Anywhere);
    let (inner, act) = (draft.inner(), draft.in_turn(Act::ALL));
    let (x, numbers) = draft.elements("x", &inner);
    let bounds = numbers.iter().map(|x| gate_bound(act.into(), *x, 1.0, round)).collect();
    let y = draft.builder.same("y", Op::Activate { act }, &[x]);
    draft.gathered(format!("{inner:?} {act:?}"), y, bounds)
}

/// The exponential less one has an error of eight roundings; the difference, its product, the linear term and
/// the sum follow. Each term is a size of its own, as the difference cancels near zero.
fn xielu_bound(xielu: Xielu, x: f32, round: Roundoff) -> f64 {
    let [positive, negative, beta, epsilon] =
        [xielu.positive, xielu.negative, xielu.beta, xielu.epsilon].map(|x| f64::from(x).abs());
    let x = f64::from(x);
    let size = match x > 0.0 {
        true => positive * x * x,
        false => (x.min(-epsilon).exp_m1().abs() + x.abs()) * negative,
    };
    round.gamma(11) * (size + (beta * x).abs()) + TINY
}

/// xIELU, with an exponent bound as models have it.
pub(super) fn xielu(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Xielu, seed, round, Begin::Anywhere);
    let inner = draft.inner();
    let (x, numbers) = draft.elements("x", &inner);
    let [positive, negative, beta] = [(); 3].map(|()| draft.random.number());
    let xielu = Xielu { positive, negative, beta, epsilon: -1e-6 };
    let bounds = numbers.iter().map(|x| xielu_bound(xielu, *x, round)).collect();
    let Xielu { epsilon, .. } = xielu;
    let y = draft.builder.same("y", Op::Xielu { positive, negative, beta, epsilon }, &[x]);
    draft.gathered(format!("{inner:?} {xielu:?}"), y, bounds)
}
