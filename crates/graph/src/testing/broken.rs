//! Broken twins of the definition: wrong constants, weights and inputs, and results with typical faults. Some case
//! of the op must notice each.

use std::collections::BTreeMap;
use std::ops::Range;

use girih_tensor::Random;

use super::case::{Case, CaseInput, CaseSequence};
use super::draft::stored_values;
use super::roundoff::Roundoff;
use super::suite::{compare, truth};
use super::table::draw;
use crate::constant::{Act, GateLimit, HeadSharing, Pairing, Pooling, RouterScore, Span, Weighed};
use crate::ops::{Op, OpName, RowUse};
use crate::state_kind::StateKind;

/// What changes no result: `used` only bounds the work, and a row that reads its own position alone gets its value
/// whatever the score. The shape of the result says how many values there are.
const WITHOUT_EFFECT: [(OpName, &str); 4] = [
    (OpName::Experts, "used"),
    (OpName::AttendLatent, "values"),
    (OpName::Write, "input q is another"),
    (OpName::Write, "input k is another"),
];

/// What must be noticed of an op, and whether a case has.
#[derive(Default)]
struct Noticed(BTreeMap<String, bool>);

impl Noticed {
    fn record(&mut self, what: &str, is_noticed: bool) {
        *self.0.entry(what.to_owned()).or_default() |= is_noticed;
    }
}

/// Breaks each op's cases of these seeds, and returns what no case has noticed.
///
/// # Panics
/// When the interpreter does not run a case.
pub fn undetected(seeds: Range<u64>) -> Vec<String> {
    let mut all = Vec::new();
    for &op in OpName::ALL {
        let mut noticed = Noticed::default();
        for name in op.spec().constants {
            noticed.record(name, false);
        }
        for seed in seeds.clone() {
            let case = draw(op, seed, Roundoff::SINGLE);
            let want =
                truth(&case).unwrap_or_else(|error| panic!("{op:?} seed {seed}, {}: {error}", case.name));
            break_results(&case, &want, &mut noticed);
            break_operands(&case, &want, &mut noticed);
            break_constants(&case, &want, &mut noticed);
        }
        let has_effect = |what: &str| !WITHOUT_EFFECT.contains(&(op, what));
        let missed = noticed.0.into_iter().filter(|(what, is_noticed)| !is_noticed && has_effect(what));
        all.extend(missed.map(|(what, _)| format!("{}: {what}", op.spec().name)));
    }
    all
}

/// Whether a case notices results that are not those of its definition.
fn notices(case: &Case, got: &[f32], want: &[f32]) -> bool {
    compare(got, want, &case.bounds, Roundoff::SINGLE).is_err()
}

/// A fault of results, in rows of some width.
type ResultFault = fn(&mut [f32], usize);

/// Faults of loops: a wrong index, a wrong end, a small factor.
const RESULT_FAULTS: [(&str, ResultFault); 5] = [
    ("the last value is missing", |y, _| y[y.len() - 1] = 0.0),
    ("the first value is missing", |y, _| y[0] = 0.0),
    ("the last two values are swapped", |y, _| {
        let last = y.len() - 1;
        y.swap(last, last.saturating_sub(1));
    }),
    ("the last row is the first", |y, width| y.copy_within(..width, y.len() - width)),
    ("a value is 2⁻¹⁰ too large", |y, _| {
        let middle = y.len() / 2;
        y[middle] *= 1.0 + 1.0 / 1024.0;
    }),
];

fn break_results(case: &Case, want: &[f32], noticed: &mut Noticed) {
    let output = case.graph.output().expect("the graph of a case has an output");
    let width = case.graph.value(output).shape.stride();
    for (what, fault) in RESULT_FAULTS.iter().filter(|_| !want.is_empty()) {
        let mut got = want.to_vec();
        fault(&mut got, width);
        noticed.record(what, notices(case, &got, want));
    }
}

/// Other numbers in each weight and each input. A case that no longer runs notices, too.
fn break_operands(case: &Case, want: &[f32], noticed: &mut Noticed) {
    let mut random = Random(want.len() as u64);
    let mut try_case = |what: String, other: Case| {
        let is_noticed = truth(&other).map_or(true, |got| notices(case, &got, want));
        noticed.record(&what, is_noticed);
    };
    for (_, weight) in case.graph.weights() {
        let mut other = case.clone();
        let bytes = stored_values(weight.dtype, &weight.shape, &mut random);
        other.weights.0.insert(weight.name.clone(), bytes);
        try_case(format!("weight {} is another", weight.name), other);
    }
    let is_sequential = case.graph.nodes.iter().any(|node| node.op.spec().rows == RowUse::Sequential);
    if is_sequential && case.sequences.len() > 1 {
        // The second sequence goes on with what the first one has left.
        let mut other = case.clone();
        let rows = case.sequences.iter().map(|sequence| sequence.rows).sum();
        other.sequences = vec![CaseSequence::new(0, rows)];
        other.graph.key.context = rows;
        try_case("a carried value is not cleared".to_owned(), other);
    }
    let inputs: Vec<String> = case.graph.inputs().map(|(_, value)| value.name.clone()).collect();
    for (index, name) in inputs.iter().enumerate() {
        let mut other = case.clone();
        match &mut other.inputs[index] {
            CaseInput::Ids(ids) => ids.rotate_left(1),
            CaseInput::Rows(_, values) => values.iter_mut().for_each(|x| *x = random.number()),
            CaseInput::Given(_, runs) => runs.iter_mut().for_each(|(_, values)| values.reverse()),
        }
        try_case(format!("input {name} is another"), other);
        if let (true, CaseInput::Rows(width, values)) = (is_sequential, &case.inputs[index]) {
            let mut late = values.clone();
            late.rotate_right(*width);
            let mut other = case.clone();
            other.inputs[index] = CaseInput::Rows(*width, late);
            try_case(format!("input {name} is a row late"), other);
        }
    }
}

/// The node's op with another constant each.
fn break_constants(case: &Case, want: &[f32], noticed: &mut Noticed) {
    let is_own = |op: &Op| op.spec().name == case.of;
    let Some(index) = case.graph.nodes.iter().position(|node| is_own(&node.op)) else { return };
    for (name, op) in changed_constants(case.graph.nodes[index].op) {
        let mut other = case.clone();
        other.graph.nodes[index].op = op;
        if let Op::Attend { span, .. } | Op::AttendLatent { span, .. } = op {
            other.graph.groups.iter_mut().for_each(|group| group.kind = StateKind::Positions { span });
        }
        // A graph that is refused shows nothing.
        if let Ok(got) = truth(&other) {
            noticed.record(name, notices(case, &got, want));
        }
    }
}

/// Whether there is a number, the other way round.
fn toggled<T>(constant: Option<T>, other: T) -> Option<T> {
    if constant.is_some() { None } else { Some(other) }
}

/// The next of some choices.
fn next<T: Copy + PartialEq>(of: T, choices: &[T]) -> T {
    let at = choices.iter().position(|choice| *choice == of).map_or(0, |at| at + 1);
    choices[at % choices.len()]
}

fn other_span(span: Span) -> Span {
    match span {
        Span::Window(length) => Span::Window(length + 1),
        Span::Chunk(length) => Span::Chunk(length + 1),
        Span::Full | Span::Past => Span::Window(2),
        Span::All | Span::Mutual => span,
    }
}

/// The op with each constant changed, by the constant's name. There is no default arm, so an op whose constants
/// nobody changes does not compile.
#[allow(clippy::too_many_lines, reason = "each op has its arm")]
fn changed_constants(op: Op) -> Vec<(&'static str, Op)> {
    match op {
        Op::Embed
        | Op::Splice
        | Op::Linear
        | Op::LinearHeads
        | Op::Concat
        | Op::Reshape
        | Op::Write
        | Op::ShortConv
        | Op::Add
        | Op::ScaleColumns
        | Op::ShiftColumns
        | Op::MixHeads
        | Op::Gather => Vec::new(),
        Op::SsmScan { least, most } => vec![
            ("least", Op::SsmScan { least: 2.0 * least + 0.1, most }),
            ("most", Op::SsmScan { least, most: toggled(most, 0.1) }),
        ],
        Op::DeltaRule { sharing } => {
            let other = next(sharing, &[HeadSharing::Neighbours, HeadSharing::Turns]);
            vec![("sharing", Op::DeltaRule { sharing: other })]
        }
        Op::Norm { epsilon } => vec![("epsilon", Op::Norm { epsilon: 1.5 * epsilon + 1e-4 })],
        Op::MatchRms { least } => vec![("least", Op::MatchRms { least: 4.0 * least + 0.5 })],
        Op::Sparsify { deviations } => {
            vec![("deviations", Op::Sparsify { deviations: deviations + 0.01 })]
        }
        Op::LayerNorm { epsilon } => vec![("epsilon", Op::LayerNorm { epsilon: 1.5 * epsilon + 1e-4 })],
        Op::Route { score, used, normalized, groups, factor, near } => {
            let route = |score, used, normalized, groups, factor| Op::Route {
                score,
                used,
                normalized,
                groups,
                factor,
                near,
            };
            vec![
                (
                    "score",
                    Op::Route {
                        score: next(score, RouterScore::ALL),
                        used,
                        normalized,
                        groups,
                        factor,
                        near: None,
                    },
                ),
                ("used", route(score, used + 1, normalized, groups, factor)),
                ("normalized", route(score, used, toggled(normalized, 0.0), groups, factor)),
                ("groups", route(score, used, normalized, None, factor)),
                ("factor", route(score, used, normalized, groups, toggled(factor, 1.01))),
                ("near", Op::Route { score, used, normalized, groups, factor, near: toggled(near, 0.3) }),
            ]
        }
        Op::Experts { used, act, limit, offset, weighed } => {
            let other = if weighed == Weighed::Results { Weighed::Inputs } else { Weighed::Results };
            vec![
                ("act", Op::Experts { used, act: next(act, Act::ALL), limit, offset, weighed }),
                (
                    "limit",
                    Op::Experts { used, act, limit: toggled(limit, GateLimit::Gate(0.1)), offset, weighed },
                ),
                ("offset", Op::Experts { used, act, limit, offset: toggled(offset, 0.1), weighed }),
                ("weighed", Op::Experts { used, act, limit, offset, weighed: other }),
            ]
        }
        Op::Rope { pairing, factor } => vec![
            ("pairing", Op::Rope { pairing: next(pairing, Pairing::ALL), factor }),
            ("factor", Op::Rope { pairing, factor: toggled(factor, 1.01) }),
        ],
        Op::Temper { beta, every, offset } => vec![
            ("beta", Op::Temper { beta: 1.01 * beta, every, offset }),
            ("every", Op::Temper { beta, every: every + 1, offset }),
            ("offset", Op::Temper { beta, every, offset: offset + 1 }),
        ],
        Op::GateHeads { act } => vec![("act", Op::GateHeads { act: next(act, Act::ALL) })],
        Op::Attend { scale, span, softcap } => {
            let other = other_span(span);
            vec![
                ("scale", Op::Attend { scale: 1.01 * scale, span, softcap }),
                ("span", Op::Attend { scale, span: other, softcap }),
                ("softcap", Op::Attend { scale, span, softcap: toggled(softcap, 1.0) }),
            ]
        }
        Op::SelectKeys { best } => vec![("best", Op::SelectKeys { best: best + 1 })],
        // Another number of values does not suit the result.
        Op::AttendLatent { scale, span, values } => vec![
            ("scale", Op::AttendLatent { scale: 1.01 * scale, span, values }),
            ("span", Op::AttendLatent { scale, span: other_span(span), values }),
        ],
        Op::Gate { act, limit, offset } => vec![
            ("act", Op::Gate { act: next(act, Act::ALL), limit, offset }),
            ("limit", Op::Gate { act, limit: toggled(limit, GateLimit::Gate(0.7)), offset }),
            ("offset", Op::Gate { act, limit, offset: toggled(offset, 0.01) }),
        ],
        Op::Activate { act } => vec![("act", Op::Activate { act: next(act, Act::ALL) })],
        Op::Xielu { positive, negative, beta, epsilon } => vec![
            ("positive", Op::Xielu { positive: 1.001 * positive, negative, beta, epsilon }),
            ("negative", Op::Xielu { positive, negative: 1.001 * negative, beta, epsilon }),
            ("beta", Op::Xielu { positive, negative, beta: 1.001 * beta, epsilon }),
            ("epsilon", Op::Xielu { positive, negative, beta, epsilon: 2.0 * epsilon }),
        ],
        Op::Scale { factor } => vec![("factor", Op::Scale { factor: 1.001 * factor })],
        Op::Softcap { cap } => vec![("cap", Op::Softcap { cap: 1.001 * cap })],
        Op::Clamp { low, high } => {
            vec![("low", Op::Clamp { low: low - 0.01, high }), ("high", Op::Clamp { low, high: high + 0.01 })]
        }
        Op::Hadamard { size } => vec![("size", Op::Hadamard { size: if size == 2 { 4 } else { size / 2 } })],
        Op::Pool { how } => vec![("how", Op::Pool { how: next(how, Pooling::ALL) })],
    }
}
