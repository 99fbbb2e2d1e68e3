//! Cases of matmuls and of experts.

use girih_tensor::{DType, reference};

use super::case::Case;
use super::draft::{Begin, CaseDraft, Numbers};
use super::roundoff::{Roundoff, TINY};
use crate::constant::{Act, ExpertGroups, GateLimit, GateRule, RouterScore, Weighed};
use crate::ops::route::Router;
use crate::ops::{Op, OpName};

/// The bias is one more term of the sum.
pub(super) fn linear(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Linear, seed, round, Begin::Anywhere);
    let dtype = draft.format();
    let (inputs, outputs) = (draft.columns_of(dtype), 1 + draft.random.below(70));
    let (x, numbers) = draft.rows_within(1.0, "x", &[inputs]);
    let (weight, weights) = draft.weight("weight", &[outputs, inputs], dtype);
    let vector = draft.vector_format();
    let bias = draft.random.once_in(2).then(|| draft.weight("bias", &[outputs], vector));
    let mut bounds = Vec::new();
    for x in numbers.chunks_exact(inputs) {
        for (output, weights) in weights.chunks_exact(inputs).enumerate() {
            let exact = reference::dot(x, weights);
            // The sum may be stored before the bias is added to it.
            let (bias, stored) = match &bias {
                None => (0.0, 0.0),
                Some((_, bias)) => (f64::from(bias[output].abs()), round.stored * exact.sum.abs()),
            };
            bounds.push(round.gamma(inputs + 2) * (exact.size + bias) + stored + TINY);
        }
    }
    let operands: Vec<_> = [x, weight].into_iter().chain(bias.iter().map(|(id, _)| *id)).collect();
    let y = draft.builder.shaped("y", Op::Linear, &operands, &[outputs]);
    let with = if bias.is_some() { "a" } else { "no" };
    draft.gathered(format!("{dtype} [{outputs}, {inputs}] with {with} bias"), y, bounds)
}

/// A matmul for each head.
pub(super) fn linear_heads(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::LinearHeads, seed, round, Begin::Anywhere);
    let dtype = draft.format();
    let dtype = if dtype.tile().0 == 1 { dtype } else { DType::F32 };
    let (heads, outputs) = (1 + draft.random.below(5), draft.random.of(&[1, 7, 31, 32, 64, 70, 96, 160]));
    let inputs = draft.columns_of(dtype);
    let (x, numbers) = draft.rows_within(1.0, "x", &[heads, inputs]);
    let (weight, weights) = draft.weight("weight", &[heads, outputs, inputs], dtype);
    let mut bounds = Vec::new();
    for row in numbers.chunks_exact(heads * inputs) {
        for (x, matrix) in row.chunks_exact(inputs).zip(weights.chunks_exact(outputs * inputs)) {
            let of_output = |weights| round.gamma(inputs + 2) * reference::dot(x, weights).size + TINY;
            bounds.extend(matrix.chunks_exact(inputs).map(of_output));
        }
    }
    let y = draft.builder.shaped("y", Op::LinearHeads, &[x, weight], &[heads, outputs]);
    draft.gathered(format!("{dtype} [{heads}, {outputs}, {inputs}]"), y, bounds)
}

impl CaseDraft {
    /// A router of some experts.
    fn router(&mut self) -> (Router, usize) {
        let best = self.random.of(&[1, 2]);
        let groups = ExpertGroups { count: 1 + self.random.below(4) as u32, used: 1, best };
        let groups = self.random.once_in(3).then_some(groups);
        let experts = match groups {
            Some(groups) => groups.count as usize * (2 + self.random.below(4)),
            None => 1 + self.random.below(16),
        };
        let most = groups.map_or(experts, |groups| experts / groups.count as usize).min(5);
        let score = self.in_turn(RouterScore::ALL);
        let near = (score == RouterScore::Softmax).then(|| self.random.of(&[None, Some(0.3)])).flatten();
        let router = Router {
            score,
            near,
            used: 1 + self.random.below(most) as u32,
            normalized: self.random.of(&[None, Some(0.0), Some(1e-6)]),
            groups,
            factor: self.random.of(&[None, Some(1.5)]),
        };
        (router, experts)
    }

    /// Scores so far apart that no rounding changes a choice. If scores alone decide, some rows have ties, which go
    /// to the first expert.
    fn scores(&mut self, router: &Router, experts: usize, bias: Option<&[f32]>) -> Numbers {
        let mut all = Vec::new();
        let ties = bias.is_none() && router.groups.is_none() && self.round == Roundoff::SINGLE;
        let error = 4.0 * self.round.gamma(experts + 8).max(self.round.stored);
        for _ in 0..self.rows() {
            let row = (0..1000).find_map(|_| {
                let row: Vec<f32> = self.random.numbers(experts).iter().map(|x| 5.0 * x).collect();
                router.uncertain(&row, bias, error).is_empty().then_some(row)
            });
            let tie = ties && self.random.once_in(8);
            let row = row.filter(|_| !tie).unwrap_or_else(|| vec![1.0; experts]);
            all.extend(row);
        }
        self.input_rows("scores", &[experts], all)
    }
}

/// Every kind of router. A probability has an exponential (four roundings), a sum of all and a quotient; the
/// sum of the chosen ones, epsilon, a quotient and the factor follow.
pub(super) fn route(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Route, seed, round, Begin::Anywhere);
    let (router, experts) = draft.router();
    let bias = draft.random.once_in(2).then(|| draft.weight("bias", &[experts], DType::F32));
    let numbers = bias.as_ref().map(|(_, bias)| bias.as_slice());
    let (scores, rows) = draft.scores(&router, experts, numbers);
    let weights = rows.chunks_exact(experts).flat_map(|row| router.weights(row, numbers));
    let bounds = weights.map(|weight| round.gamma(2 * experts + 14) * f64::from(weight) + TINY).collect();
    let Router { score, used, normalized, groups, factor, near } = router;
    let operands: Vec<_> = [scores].into_iter().chain(bias.iter().map(|(id, _)| *id)).collect();
    let y = draft.builder.same("y", Op::Route { score, used, normalized, groups, factor, near }, &operands);
    let with = if bias.is_some() { "a" } else { "no" };
    draft.gathered(format!("{experts} experts with {with} bias, {router:?}"), y, bounds)
}

/// A number and the bound of its error.
type Inexact = (f64, f64);

/// The matrices and biases of all experts of one kind.
struct Stack<'a> {
    numbers: &'a [f32],
    biases: Option<&'a [f32]>,
    rows: usize,
    columns: usize,
}

impl Stack<'_> {
    /// The product of an expert's matrix and a row.
    fn times(&self, expert: usize, x: &[Inexact], round: Roundoff) -> Vec<Inexact> {
        let of_row = |row: usize| {
            let at = expert * self.rows + row;
            let bias = self.biases.map_or(0.0, |biases| f64::from(biases[at]));
            let (mut sum, mut size, mut error) = (bias, bias.abs(), 0.0);
            for (weight, (x, of_x)) in self.numbers[at * self.columns..].iter().zip(x) {
                let weight = f64::from(*weight);
                sum += weight * x;
                size += (weight * x).abs();
                error += weight.abs() * of_x;
            }
            (sum, error + round.gamma(self.columns + 2) * (size + error))
        };
        (0..self.rows).map(of_row).collect()
    }
}

/// The weights of experts, and what they do to a row.
struct Experts<'a> {
    up: Stack<'a>,
    down: Stack<'a>,
    gate: Option<Stack<'a>>,
    rule: GateRule,
    weighed: Weighed,
    round: Roundoff,
}

impl Experts<'_> {
    /// The weighted result of an expert for a row.
    fn of(&self, expert: usize, weight: Inexact, row: &[Inexact]) -> Vec<Inexact> {
        let Experts { ref up, ref down, ref gate, rule, weighed, round } = *self;
        let (x, weight) = match weighed {
            Weighed::Results => (row.to_vec(), weight),
            Weighed::Inputs => (row.iter().map(|x| product(weight, *x, round)).collect(), (1.0, 0.0)),
        };
        let up = up.times(expert, &x, round).into_iter();
        let inner: Vec<Inexact> = match gate {
            None => up.map(|up| activated(rule.act, up, round)).collect(),
            Some(gate) => {
                let gates = gate.times(expert, &x, round).into_iter();
                gates.zip(up).map(|(gate, up)| gated(rule, gate, up, round)).collect()
            }
        };
        down.times(expert, &inner, round).into_iter().map(|y| product(weight, y, round)).collect()
    }
}

/// An activated number: no activation here has a slope above 1.13, and none has more than 24 roundings.
fn activated(act: Act, (x, error): Inexact, round: Roundoff) -> Inexact {
    let y = act.of(x);
    (y, 1.13 * error + round.gamma(24) * (y.abs() + error) + 4.0 * f64::EPSILON * x.abs())
}

/// A product of two inexact numbers.
fn product((a, of_a): Inexact, (b, of_b): Inexact, round: Roundoff) -> Inexact {
    let error = of_a * (b.abs() + of_b) + a.abs() * of_b;
    (a * b, error + round.gamma(2) * ((a * b).abs() + error))
}

/// What a gate and the value that it gates become. A limit makes no error larger; an offset is a sum.
fn gated(rule: GateRule, (gate, of_gate): Inexact, (up, of_up): Inexact, round: Roundoff) -> Inexact {
    let limit = f64::from(rule.limit.map_or(f32::INFINITY, GateLimit::bound));
    let up = up.clamp(-limit, limit) + f64::from(rule.offset.unwrap_or(0.0));
    let of_up = if rule.offset.is_some() { of_up + round.gamma(1) * (up.abs() + of_up) } else { of_up };
    let gate = match rule.limit {
        Some(GateLimit::Activated(_)) => {
            let (gate, error) = activated(rule.act, (gate, of_gate), round);
            (gate.min(limit), error)
        }
        Some(GateLimit::Gate(_)) | None => activated(rule.act, (gate.min(limit), of_gate), round),
    };
    product(gate, (up, of_up), round)
}

/// Activations of the experts of models. The square of a number has no largest slope.
const EXPERT_ACTS: [Act; 4] = [Act::Silu, Act::GeluTanh, Act::QuickGelu, Act::Relu];

/// Experts after a router, with any number of optional operands. Errors go from the row to the inner row, from
/// there to an expert's result, and to the sum.
pub(super) fn experts(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Experts, seed, round, Begin::Anywhere);
    let (router, experts) = draft.router();
    let dtype =
        draft.random.of(&[DType::F32, DType::BF16, DType::F16, DType::Q8_0, DType::Q4_0, DType::MXFP4]);
    let [width, inner] = [(); 2].map(|()| draft.columns_of(dtype).min(160));
    let outputs = draft.columns().min(70);
    let (x, rows) = draft.rows_within(1.0, "x", &[width]);
    let (scores, scored) = draft.scores(&router, experts, None);
    let Router { score, used, normalized, groups, factor, near } = router;
    let route = Op::Route { score, used, normalized, groups, factor, near };
    let weights = draft.builder.same("weights", route, &[scores]);
    let optional = draft.random.below(5);
    let all: Vec<Numbers> = [
        ("up", vec![experts, inner, width], dtype),
        ("down", vec![experts, outputs, inner], dtype),
        ("gate", vec![experts, inner, width], dtype),
        ("gate_bias", vec![experts, inner], DType::F32),
        ("up_bias", vec![experts, inner], DType::F32),
        ("down_bias", vec![experts, outputs], DType::F32),
    ]
    .into_iter()
    .take(2 + optional)
    .map(|(name, extents, dtype)| draft.weight(name, &extents, dtype))
    .collect();
    let of = |index: usize| all.get(index).map(|(_, numbers)| numbers.as_slice());
    let stack = |index: usize, bias: usize, rows: usize, columns: usize| {
        of(index).map(|numbers| Stack { numbers, biases: of(bias), rows, columns })
    };
    let (up, down) = (stack(0, 4, inner, width), stack(1, 5, outputs, inner));
    let (up, down, gate) = (up.expect("required"), down.expect("required"), stack(2, 3, inner, width));
    let act = draft.in_turn(&EXPERT_ACTS);
    let (limit, offset) = match &gate {
        None => (None, None),
        Some(_) => draft.random.of(&[
            (None, None),
            (Some(GateLimit::Activated(0.5)), None),
            (Some(GateLimit::Gate(1.5)), None),
            (Some(GateLimit::Gate(0.25)), Some(1.0)),
        ]),
    };
    let rule = GateRule { act, limit, offset };
    let weighed = match optional {
        1 => draft.random.of(&[Weighed::Results, Weighed::Inputs]),
        _ => Weighed::Results,
    };
    let stacks = Experts { up, down, gate, rule, weighed, round };
    let mut bounds = Vec::new();
    for (x, scores) in rows.chunks_exact(width).zip(scored.chunks_exact(experts)) {
        let row: Vec<Inexact> = x.iter().map(|x| (f64::from(*x), 0.0)).collect();
        let mut sums = vec![(0.0, 0.0); outputs];
        let chosen =
            router.weights(scores, None).into_iter().enumerate().filter(|(_, weight)| *weight != 0.0);
        for (expert, weight) in chosen {
            let weight = (f64::from(weight), round.gamma(2 * experts + 14) * f64::from(weight));
            for ((size, error), (term, of_term)) in sums.iter_mut().zip(stacks.of(expert, weight, &row)) {
                *size += term.abs();
                *error += of_term;
            }
        }
        let terms = round.gamma(router.used as usize + 3);
        bounds.extend(sums.iter().map(|(size, error)| error + terms * (size + error) + 2f64.powi(-121)));
    }
    let operands: Vec<_> = [x, weights].into_iter().chain(all.iter().map(|(id, _)| *id)).collect();
    let y =
        draft.builder.shaped("y", Op::Experts { used, act, limit, offset, weighed }, &operands, &[outputs]);
    let name = format!(
        "{dtype} {experts}×[{outputs}, {inner}, {width}], {optional} optional, {rule:?}, {weighed:?}, {router:?}"
    );
    draft.gathered(name, y, bounds)
}
