//! Where each node is computed: on the array, or on the host and why.

use girih_graph::split::{Site, Split, split};
use girih_graph::{Act, AppliedOp, Extent, Graph, Op, Span, ValueId};

use super::policy::{AttentionPlacement, Policy};

/// Where a node is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeSite {
    /// On the host, for this reason.
    Host(String),
    /// On the array, all rows at once.
    Array,
    /// On the array, one output row at a time.
    EachOutputRow,
    /// Not computed: the result is a view of the input.
    View,
    /// Not computed: neither the array nor the host has code for the op.
    Unknown,
}

/// Whether the array or the host has code for an op with these operands.
pub fn knows<T>(call: &AppliedOp<T>) -> bool {
    match call {
        AppliedOp::Embed { ids: _, table: _ }
        | AppliedOp::Norm { epsilon: _, x: _, weight: _ }
        | AppliedOp::Linear { x: _, weight: _, bias: _ }
        | AppliedOp::Reshape { x: _ }
        | AppliedOp::Rope { pairing: _, x: _, frequencies: _ }
        | AppliedOp::Write { x: _ }
        | AppliedOp::Add { a: _, b: _ }
        | AppliedOp::Scale { factor: _, x: _ }
        | AppliedOp::Softcap { cap: _, x: _ }
        | AppliedOp::Gather { x: _ } => true,
        AppliedOp::Gate { act, gate: _, up: _ } => matches!(act, Act::Silu | Act::GeluTanh),
        AppliedOp::Attend { scale: _, span, softcap: _, q: _, keys: _, values: _ } => *span != Span::All,
        AppliedOp::Splice { .. }
        | AppliedOp::LayerNorm { .. }
        | AppliedOp::Activate { .. }
        | AppliedOp::Pool { .. } => false,
    }
}

/// Returns why a node cannot be computed, if it cannot.
pub fn refusal(graph: &Graph, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    match node.op {
        Op::Scale { .. } | Op::Softcap { .. } if site(graph, policy, index) == NodeSite::Array => {
            Some(format!("{} of rows of the step has no kernel on the array yet", node.op.name()))
        }
        op if site(graph, policy, index) == NodeSite::Unknown => {
            Some(format!("it has no code for the op '{}'", op.name()))
        }
        _ => None,
    }
}

/// Where a node is computed.
pub(super) fn site(graph: &Graph, policy: Policy, index: usize) -> NodeSite {
    let node = &graph.nodes[index];
    let output_rows = graph.value(node.output).outermost == Extent::OutputRows;
    let embeds = |value: ValueId| graph.nodes.iter().any(|node| node.output == value && node.op == Op::Embed);
    let host = |reason: &str| NodeSite::Host(reason.to_owned());
    match node.op {
        op if !op.applied_to(&node.inputs).is_some_and(|call| knows(&call)) => NodeSite::Unknown,
        Op::Reshape => NodeSite::View,
        Op::Embed => host("the host looks up the rows of tokens"),
        Op::Write => host("the KV cache is in host memory"),
        Op::Gather => host("only the host has the list of output rows"),
        Op::Attend { .. } => attention_fallback(graph, policy, index).map_or(NodeSite::Array, NodeSite::Host),
        Op::Linear if output_rows => NodeSite::EachOutputRow,
        _ if output_rows => host("its rows are output rows, which the host has gathered"),
        Op::Scale { .. } if embeds(node.inputs[0]) => {
            host("its rows are embeddings, which the host has looked up")
        }
        Op::Linear
        | Op::Norm { .. }
        | Op::Rope { .. }
        | Op::Gate { .. }
        | Op::Add
        | Op::Scale { .. }
        | Op::Softcap { .. } => NodeSite::Array,
        Op::Splice | Op::LayerNorm { .. } | Op::Activate { .. } | Op::Pool { .. } => NodeSite::Unknown,
    }
}

/// Returns why attention runs on the host, if it does. It runs on the array when the policy
/// allows it, all rows are of one sequence, and scores have no softcap.
fn attention_fallback(graph: &Graph, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    let Op::Attend { softcap, .. } = node.op else { return None };
    let (keys, values) = (graph.value(node.inputs[1]), graph.value(node.inputs[2]));
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
        NodeSite::Host(reason) => Site::Host(reason),
        NodeSite::Array | NodeSite::EachOutputRow | NodeSite::View | NodeSite::Unknown => Site::Device,
    })
}
