//! The array's answer to each node: its program on the array, or why the host computes it. No other
//! part of this crate asks for an op of the graph what the array does with it.

use girih_graph::split::{Site, Split, split};
use girih_graph::{Act, AppliedOp, Extent, Graph, Op, Pairing, Span, ValueId};

use super::policy::{AttentionPlacement, Policy};
use crate::form::groups::GateAct;

/// The array's answer to a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The node is not computed: the result is a view of this value.
    View(ValueId),
    /// The interpreter computes the node on the host, because the array has no program for it, for this
    /// reason.
    NoProgram(String),
    /// The host computes the node, for this reason. If the array has a program for it, values are padded as
    /// this program needs it: then all steps of a model share padded weights, wherever they compute the node.
    Host(String, Option<ArrayNode>),
    /// The array computes the node.
    Array(ArrayNode),
}

/// A node as a program of the array computes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrayNode {
    /// What it computes.
    pub op: ArrayOp,
    /// What its kernel reads, in the kernel's order.
    pub operands: Vec<ArrayOperand>,
}

/// What a program of the array computes for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ArrayOp {
    /// A matrix product, of all rows or of one output row in each run. A launch of its own adds the bias.
    Linear { bias: Option<ArrayOperand>, each_output_row: bool },
    /// A norm of whole rows, or of each head, of `size` values.
    Norm { epsilon: f32, size: usize, by_head: bool },
    /// A layer norm of whole rows, of `size` values.
    LayerNorm { epsilon: f32, size: usize },
    /// GELU by its tanh formula.
    Gelu,
    /// A rotation of heads of `size` values.
    Rope { pairing: Pairing, size: usize },
    /// `act(gate) · up`.
    Gate { act: GateAct },
    /// A sum of two values.
    Add,
    /// Attention to the positions of a span, which has a [`window`].
    Attend { scale: f32, span: Span },
}

/// What a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayOperand {
    /// A value of the step.
    Rows(ValueId),
    /// A weight, and the values as wide as which its rows and its columns are padded; without a value,
    /// there is no padding.
    Weight(ValueId, [Option<ValueId>; 2]),
    /// The cosines and sines of the angles that these frequencies make.
    CosSin(ValueId),
    /// The keys and values that the queries of a step attend to.
    Chunks { queries: ValueId, keys: ValueId, values: ValueId, span: Span },
    /// The positions of the first row and of the first key.
    Start { window: u32 },
}

impl Answer {
    /// The node's program on the array, if there is one, even if the host computes the node.
    pub fn program(&self) -> Option<&ArrayNode> {
        match self {
            Answer::Array(node) | Answer::Host(_, Some(node)) => Some(node),
            Answer::View(_) | Answer::NoProgram(_) | Answer::Host(_, None) => None,
        }
    }
}

/// Why a node of such heads has no program: a head would end within a word of 4 bytes.
const ODD_HEADS: &str = "heads of an odd number of values";

/// The array's answer to each node of a graph.
pub(super) fn answers(graph: &Graph, policy: Policy) -> Vec<Answer> {
    (0..graph.nodes.len()).map(|index| answer(graph, policy, index)).collect()
}

#[allow(clippy::too_many_lines, reason = "each op has its arm, which names all of its operands")]
fn answer(graph: &Graph, policy: Policy, index: usize) -> Answer {
    use ArrayOperand::{Chunks, CosSin, Rows, Start, Weight};
    let node = &graph.nodes[index];
    let y = node.output;
    // The extents of a row.
    let inner = |value: ValueId| &graph.value(value).shape.extents()[1..];
    let outermost = graph.value(y).outermost;
    let stays = match outermost {
        Extent::OutputRows => Some("its rows are output rows, which the host has gathered"),
        Extent::Sequences => Some("its rows are pooled rows, which the host has made"),
        Extent::Rows | Extent::Context | Extent::Fixed => None,
    };
    let host = |reason: &str| Answer::Host(reason.to_owned(), None);
    let missing = |what: &str| Answer::NoProgram(format!("the array has no program for {what}"));
    let no_program = |what: &str| stays.map_or_else(|| missing(what), host);
    let program = |op, operands| answered(ArrayNode { op, operands }, stays.map(str::to_owned));
    let op = node.op.applied_to(&node.inputs).expect("the checker refuses other numbers of operands");
    match op {
        AppliedOp::Reshape { x } => Answer::View(x),
        AppliedOp::Embed { ids: _, table: _ } => host("the host looks up the rows of tokens"),
        AppliedOp::Write { x: _ } => host("the KV cache is in host memory"),
        AppliedOp::Gather { x: _ } => host("only the host has the list of output rows"),
        AppliedOp::Pool { how: _, x: _ } => missing("'pool'"),
        AppliedOp::Linear { x, weight, bias } => {
            let each_output_row = outermost == Extent::OutputRows;
            let bias = bias.map(|bias| Weight(bias, [None, Some(y)]));
            let op = ArrayOp::Linear { bias, each_output_row };
            let operands = vec![Rows(x), Weight(weight, [Some(y), Some(x)])];
            if each_output_row { Answer::Array(ArrayNode { op, operands }) } else { program(op, operands) }
        }
        AppliedOp::Norm { epsilon: _, x: _, weight: None } => no_program("a norm without weight"),
        AppliedOp::Norm { epsilon: _, x, weight: Some(weight) }
            if graph.value(weight).shape.columns() != graph.value(x).shape.columns() =>
        {
            no_program("a norm of groups with weights of their own")
        }
        AppliedOp::Norm { epsilon, x, weight: Some(weight) } => match *inner(x) {
            [size] => {
                let op = ArrayOp::Norm { epsilon, size, by_head: false };
                program(op, vec![Rows(x), Weight(weight, [None, Some(x)])])
            }
            [_, size] if !size.is_multiple_of(2) => no_program(ODD_HEADS),
            [_, size] => {
                let op = ArrayOp::Norm { epsilon, size, by_head: true };
                program(op, vec![Rows(x), Weight(weight, [None, None])])
            }
            _ => no_program("a norm of values of more than three dimensions"),
        },
        AppliedOp::LayerNorm { epsilon, x, weight: Some(weight), bias: Some(bias) }
            if inner(x).len() == 1 =>
        {
            let op = ArrayOp::LayerNorm { epsilon, size: inner(x)[0] };
            program(op, vec![Rows(x), Weight(weight, [None, Some(x)]), Weight(bias, [None, Some(x)])])
        }
        AppliedOp::Activate { act: Act::GeluTanh, x } => program(ArrayOp::Gelu, vec![Rows(x)]),
        AppliedOp::Activate { act, x: _ } => no_program(&format!("'activate' of {}", act.name())),
        AppliedOp::Rope { pairing: _, factor: _, x: _, frequencies: _, positions: Some(_) } => {
            no_program("a rotation by positions that the step brings")
        }
        AppliedOp::Rope { pairing: _, factor: Some(_), x: _, frequencies: _, positions: None } => {
            no_program("a rotation with a factor")
        }
        AppliedOp::Rope { pairing, factor: None, x, frequencies, positions: None } => match *inner(x) {
            [_, size] if 2 * graph.value(frequencies).shape.columns() == size => {
                program(ArrayOp::Rope { pairing, size }, vec![Rows(x), CosSin(frequencies)])
            }
            _ => no_program("a rotation of a part of each head"),
        },
        AppliedOp::Gate { act, limit: None, offset: None, gate, up } => {
            let act = match act {
                Act::Silu => GateAct::Silu,
                Act::GeluTanh => GateAct::GeluTanh,
                Act::Gelu
                | Act::QuickGelu
                | Act::Sigmoid
                | Act::Softplus
                | Act::Relu
                | Act::Relu2
                | Act::Identity => return no_program(&format!("a gate of {}", act.name())),
            };
            program(ArrayOp::Gate { act }, vec![Rows(gate), Rows(up)])
        }
        AppliedOp::Gate { act: _, limit: _, offset: _, gate: _, up: _ } => no_program("a gate with a limit"),
        AppliedOp::Add { a, b } => program(ArrayOp::Add, vec![Rows(a), Rows(b)]),
        AppliedOp::Attend { scale: _, span: _, softcap: _, q: _, keys: _, values: _, sinks: Some(_) } => {
            no_program("attention with sinks")
        }
        AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks: None } => {
            match span {
                Span::Full | Span::Past | Span::Window(_) | Span::All => {}
                Span::Chunk(_) => return no_program("attention by chunks of positions"),
                Span::Mutual => return no_program("attention within spans of rows"),
            }
            if !graph.value(keys).shape.columns().is_multiple_of(2) {
                return no_program(ODD_HEADS);
            }
            let start = Start { window: window(span) };
            let operands = vec![Rows(q), Chunks { queries: q, keys, values, span }, start];
            let node = ArrayNode { op: ArrayOp::Attend { scale, span }, operands };
            answered(node, attention_fallback(graph, policy, (span, softcap), [keys, values]))
        }
        AppliedOp::Scale { factor: _, x } if is_embedding(graph, x) => {
            host("its rows are embeddings, which the host has looked up")
        }
        AppliedOp::Splice { x: _, given: _ }
        | AppliedOp::LayerNorm { epsilon: _, x: _, weight: _, bias: _ }
        | AppliedOp::GateHeads { act: _, gate: _, x: _ }
        | AppliedOp::Temper { beta: _, every: _, offset: _, x: _ }
        | AppliedOp::Xielu { positive: _, negative: _, beta: _, epsilon: _, x: _ }
        | AppliedOp::LinearHeads { x: _, weight: _ }
        | AppliedOp::Concat { a: _, b: _ }
        | AppliedOp::MatchRms { least: _, x: _, like: _ }
        | AppliedOp::Sparsify { deviations: _, x: _ }
        | AppliedOp::MixHeads { weights: _, x: _ }
        | AppliedOp::SelectKeys { best: _, q: _, weights: _, keys: _ }
        | AppliedOp::AttendLatent { scale: _, span: _, values: _, q: _, latents: _, selected: _ }
        | AppliedOp::ShortConv { x: _, taps: _, carried: _, bias: _ }
        | AppliedOp::SsmScan {
            least: _,
            most: _,
            x: _,
            dt: _,
            b: _,
            c: _,
            a: _,
            d: _,
            bias: _,
            carried: _,
        }
        | AppliedOp::DeltaRule { sharing: _, q: _, k: _, v: _, beta: _, dt: _, a: _, carried: _ }
        | AppliedOp::Route {
            score: _,
            used: _,
            normalized: _,
            groups: _,
            factor: _,
            near: _,
            scores: _,
            bias: _,
        }
        | AppliedOp::Scale { factor: _, x: _ }
        | AppliedOp::ScaleColumns { x: _, weight: _ }
        | AppliedOp::ShiftColumns { x: _, shift: _ }
        | AppliedOp::Softcap { cap: _, x: _ }
        | AppliedOp::Clamp { low: _, high: _, x: _ }
        | AppliedOp::Hadamard { size: _, x: _ }
        | AppliedOp::Experts {
            used: _,
            act: _,
            limit: _,
            offset: _,
            weighed: _,
            x: _,
            weights: _,
            up: _,
            down: _,
            gate: _,
            gate_bias: _,
            up_bias: _,
            down_bias: _,
        } => no_program(&format!("'{}'", node.op.name())),
    }
}

/// The number of preceding positions that a row attends to; 0 for all.
pub(super) fn window(span: Span) -> u32 {
    match span {
        Span::Window(length) => length,
        Span::Full | Span::Past | Span::All | Span::Chunk(_) | Span::Mutual => 0,
    }
}

/// The answer to a node with a program, which the host computes if there is a reason.
fn answered(node: ArrayNode, by_host: Option<String>) -> Answer {
    match by_host {
        Some(reason) => Answer::Host(reason, Some(node)),
        None => Answer::Array(node),
    }
}

/// Whether a value is made of rows of a table.
fn is_embedding(graph: &Graph, value: ValueId) -> bool {
    graph.nodes.iter().any(|node| node.output == value && node.op == Op::Embed)
}

/// Returns why attention runs on the host, if it does. It runs on the array when the policy
/// allows it, and scores have no softcap. Rows of several sequences must attend to earlier positions.
fn attention_fallback(
    graph: &Graph,
    policy: Policy,
    (span, softcap): (Span, Option<f32>),
    held: [ValueId; 2],
) -> Option<String> {
    let ([keys, values], key) = (held.map(|id| graph.value(id)), graph.key);
    if policy.attention == AttentionPlacement::Host {
        Some("the policy runs attention on the host".to_owned())
    } else if policy.attention == AttentionPlacement::HostCheaper {
        Some("attention costs less on the host".to_owned())
    } else if policy.attention == AttentionPlacement::HostOnly {
        Some("attention does not fit the array".to_owned())
    } else if policy.attention == AttentionPlacement::Prefill && (key.rows == 1 || key.sequences > 1) {
        Some("the policy runs attention of single rows on the host".to_owned())
    } else if let Some(cap) = softcap {
        Some(format!("the array's attention has no softcap; this one needs {cap}"))
    } else if key.sequences > 1 && span == Span::All {
        Some(format!(
            "a step may have rows of {} sequences; the array's attention to all rows of a step supports one",
            key.sequences
        ))
    } else if keys.shape != values.shape {
        Some(format!("keys of {} and values of {} differ in shape", keys.shape, values.shape))
    } else {
        None
    }
}

/// Divides a graph between the array and the host.
pub fn array_split(graph: &Graph, policy: Policy) -> Split {
    split(graph, |graph, index| match answer(graph, policy, index) {
        Answer::Host(reason, _) | Answer::NoProgram(reason) => Site::Host(reason),
        Answer::Array(_) | Answer::View(_) => Site::Device,
    })
}

/// The nodes that the interpreter computes because the array has no program for them, by their indexes, and
/// why.
pub fn without_program(graph: &Graph, policy: Policy) -> Vec<(usize, String)> {
    let reason = |(index, answer)| match answer {
        Answer::NoProgram(reason) => Some((index, reason)),
        Answer::Host(..) | Answer::Array(_) | Answer::View(_) => None,
    };
    answers(graph, policy).into_iter().enumerate().filter_map(reason).collect()
}
