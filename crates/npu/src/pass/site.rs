//! Where each node is computed: on the array, or on the host and why.

use girih_graph::split::{Site, Split, split};
use girih_graph::{Act, AppliedOp, Extent, Graph, Op, Span, ValueId};

use super::policy::{AttentionPlacement, Policy};

/// Where a node is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeSite {
    /// On the host, for this reason.
    Host(String),
    /// On the host, by the interpreter, because the array has no program for it, for this reason.
    NoProgram(String),
    /// On the array, all rows at once.
    Array,
    /// On the array, one output row at a time.
    EachOutputRow,
    /// Not computed: the result is a view of the input.
    View,
}

/// Where a node is computed. The interpreter computes everything for which the array has no program.
pub(super) fn site(graph: &Graph, policy: Policy, index: usize) -> NodeSite {
    let node = &graph.nodes[index];
    let embeds = |value: ValueId| graph.nodes.iter().any(|node| node.output == value && node.op == Op::Embed);
    let host = |reason: &str| NodeSite::Host(reason.to_owned());
    let no_program = |what: &str| NodeSite::NoProgram(format!("the array has no program for {what}"));
    let extent = graph.value(node.output).outermost;
    let op = node.op.applied_to(&node.inputs).expect("the checker refuses other numbers of operands");
    match op {
        AppliedOp::Reshape { x: _ } => NodeSite::View,
        AppliedOp::Embed { ids: _, table: _ } => host("the host looks up the rows of tokens"),
        AppliedOp::Write { x: _ } => host("the KV cache is in host memory"),
        AppliedOp::Gather { x: _ } => host("only the host has the list of output rows"),
        AppliedOp::Pool { how: _, x: _ } => no_program("'pool'"),
        AppliedOp::Attend { scale: _, span: Span::All, softcap: _, q: _, keys: _, values: _ } => {
            no_program("attention to all rows of a sequence")
        }
        AppliedOp::Attend { scale: _, span: Span::Full | Span::Window(_), softcap, q: _, keys, values } => {
            attention_fallback(graph, policy, softcap, [keys, values]).map_or(NodeSite::Array, NodeSite::Host)
        }
        AppliedOp::Linear { x: _, weight: _, bias: _ } if extent == Extent::OutputRows => {
            NodeSite::EachOutputRow
        }
        _ if extent == Extent::OutputRows => host("its rows are output rows, which the host has gathered"),
        _ if extent == Extent::Sequences => host("its rows are pooled rows, which the host has made"),
        AppliedOp::Scale { factor: _, x } if embeds(x) => {
            host("its rows are embeddings, which the host has looked up")
        }
        AppliedOp::Norm { epsilon: _, x, weight: _ } => match graph.value(x).shape.extents().len() {
            2 | 3 => NodeSite::Array,
            _ => no_program("a norm of values of more than three dimensions"),
        },
        AppliedOp::Gate { act, gate: _, up: _ } => match act {
            Act::Silu | Act::GeluTanh => NodeSite::Array,
            Act::Gelu | Act::Identity => no_program(&format!("a gate of {}", act.name())),
        },
        AppliedOp::Linear { x: _, weight: _, bias: _ }
        | AppliedOp::Rope { pairing: _, x: _, frequencies: _ }
        | AppliedOp::Add { a: _, b: _ } => NodeSite::Array,
        AppliedOp::Splice { x: _, given: _ }
        | AppliedOp::LayerNorm { epsilon: _, x: _, weight: _, bias: _ }
        | AppliedOp::Activate { act: _, x: _ }
        | AppliedOp::ShortConv { x: _, taps: _, carried: _ }
        | AppliedOp::Route { score: _, used: _, normalized: _, groups: _, factor: _, scores: _, bias: _ }
        | AppliedOp::Scale { factor: _, x: _ }
        | AppliedOp::Softcap { cap: _, x: _ }
        | AppliedOp::Experts {
            used: _,
            act: _,
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

/// Returns why attention runs on the host, if it does. It runs on the array when the policy
/// allows it, all rows are of one sequence, and scores have no softcap.
fn attention_fallback(
    graph: &Graph,
    policy: Policy,
    softcap: Option<f32>,
    held: [ValueId; 2],
) -> Option<String> {
    let [keys, values] = held.map(|id| graph.value(id));
    if policy.attention == AttentionPlacement::Host {
        Some("the policy runs attention on the host".to_owned())
    } else if policy.attention == AttentionPlacement::HostCheaper {
        Some("attention costs less on the host".to_owned())
    } else if policy.attention == AttentionPlacement::HostOnly {
        Some("attention does not fit the array".to_owned())
    } else if policy.attention == AttentionPlacement::Prefill && graph.key.rows == 1 {
        Some("the policy runs attention of single rows on the host".to_owned())
    } else if let Some(cap) = softcap {
        Some(format!("the array's attention has no softcap; this one needs {cap}"))
    } else if graph.key.sequences > 1 {
        Some(format!(
            "a step may have rows of {} sequences; the array's attention supports one",
            graph.key.sequences
        ))
    } else if keys.shape != values.shape {
        Some(format!("keys of {} and values of {} differ in shape", keys.shape, values.shape))
    } else {
        None
    }
}

/// Divides a graph between the array and the host.
pub fn array_split(graph: &Graph, policy: Policy) -> Split {
    split(graph, |graph, index| match site(graph, policy, index) {
        NodeSite::Host(reason) | NodeSite::NoProgram(reason) => Site::Host(reason),
        NodeSite::Array | NodeSite::EachOutputRow | NodeSite::View => Site::Device,
    })
}

/// The nodes that the interpreter computes because the array has no program for them, by their indexes, and
/// why.
pub fn without_program(graph: &Graph, policy: Policy) -> Vec<(usize, String)> {
    let reason = |index| match site(graph, policy, index) {
        NodeSite::NoProgram(reason) => Some((index, reason)),
        NodeSite::Host(_) | NodeSite::Array | NodeSite::EachOutputRow | NodeSite::View => None,
    };
    (0..graph.nodes.len()).filter_map(reason).collect()
}
