//! A rewrite that moves the gather of output rows as early as the results allow
//! (elsewhere: last-token pruning). Nodes after it compute output rows only.
//!
//! ```text
//! attend → linear → add → … → gather → norm → logits
//! attend → gather → linear → add → …  → norm → logits
//!             add of the layer before → gather ↗
//! ```
//! A prefill chunk needs one output row if it is the last one, else none. So in
//! the last layer only attention and the writes to state have to run for every
//! row. The results have the same bits, because rows do not depend on each
//! other.

use crate::graph::{Graph, Node};
use crate::ops::{Op, OperandKind, RowUse};
use crate::value::{Extent, Role, Value, ValueId};

/// A graph whose gather was moved.
#[derive(Clone, Debug, PartialEq)]
pub struct SunkGather {
    /// The graph. The output rows of a value `x` that is gathered are `x.gathered`.
    pub graph: Graph,
    /// The names of the values that now have output rows only.
    pub names: Vec<String>,
}

/// Returns the graph with its gather moved; `None` if no `linear` would then
/// compute fewer rows.
pub fn sink_gather(graph: &Graph) -> Option<SunkGather> {
    let mut gathers = graph.nodes.iter().filter(|node| node.op == Op::Gather);
    let (Some(_), None) = (gathers.next(), gathers.next()) else { return None };
    // The scratch values that only the gather reads, directly or through other such values.
    let mut fewer: Vec<bool> = graph.values.iter().map(|value| value.role == Role::Scratch).collect();
    for node in graph.nodes.iter().rev() {
        fewer[node.output.0 as usize] &= can_follow_gather(node.op);
        if node.op != Op::Gather && !fewer[node.output.0 as usize] {
            node.inputs.iter().for_each(|id| fewer[id.0 as usize] = false);
        }
    }
    let makes_fewer = |node: &&Node| fewer[node.output.0 as usize];
    graph.nodes.iter().filter(makes_fewer).find(|node| node.op == Op::Linear)?;
    let names = graph.nodes.iter().filter(makes_fewer).map(|node| graph.value(node.output).name.clone());
    Some(SunkGather { names: names.collect(), graph: rewritten(graph, &fewer) })
}

/// Whether an op computes the same rows from gathered operands; a gather reads
/// activations, not tokens.
fn can_follow_gather(op: Op) -> bool {
    let spec = op.spec();
    spec.rows == RowUse::Own && !spec.operands.contains(&OperandKind::Ids)
}

/// The graph in which the values `fewer` have output rows only, and their other
/// operands are gathered as soon as they are computed.
fn rewritten(graph: &Graph, fewer: &[bool]) -> Graph {
    let is_fewer = |id: ValueId| fewer[id.0 as usize];
    let mut is_gathered = vec![false; graph.values.len()];
    for id in graph.nodes.iter().filter(|node| is_fewer(node.output)).flat_map(|node| &node.inputs) {
        is_gathered[id.0 as usize] = graph.value(*id).outermost == Extent::Rows && !is_fewer(*id);
    }
    let output_rows = |value: &Value| Value {
        shape: value.shape.with_outermost(graph.key.output_rows as usize),
        outermost: Extent::OutputRows,
        ..value.clone()
    };
    // The output rows of a gathered value come right after it.
    let (mut values, mut ids) = (Vec::new(), Vec::new());
    for ((value, fewer), is_gathered) in graph.values.iter().zip(fewer).zip(&is_gathered) {
        ids.push(ValueId(values.len() as u32));
        values.push(if *fewer { output_rows(value) } else { value.clone() });
        if *is_gathered {
            let name = format!("{}.gathered", value.name);
            values.push(Value { name, role: Role::Scratch, ..output_rows(value) });
        }
    }
    let moved = |id: ValueId| ids[id.0 as usize];
    let gathered = |id: ValueId| is_gathered[id.0 as usize].then(|| ValueId(moved(id).0 + 1));
    let gather = |id: ValueId| Some(Node { op: Op::Gather, inputs: vec![moved(id)], output: gathered(id)? });
    let mut of_inputs = graph.inputs().filter_map(|(id, _)| gather(id)).peekable();
    let mut nodes: Vec<Node> = Vec::new();
    for node in &graph.nodes {
        if node.op != Op::Write {
            let is_before = |gather: &Node| gather.output < moved(node.output);
            nodes.extend(std::iter::from_fn(|| of_inputs.next_if(is_before)));
        }
        let reads_gathered = is_fewer(node.output);
        let inputs =
            node.inputs.iter().map(|&id| gathered(id).filter(|_| reads_gathered).unwrap_or(moved(id)));
        let is_done = node.op == Op::Gather && is_fewer(node.inputs[0]);
        let op = if is_done { Op::Reshape } else { node.op };
        nodes.push(Node { op, inputs: inputs.collect(), output: moved(node.output) });
        nodes.extend(gather(node.output));
    }
    Graph { key: graph.key, groups: graph.groups.clone(), values, nodes }
}

#[cfg(test)]
mod tests {
    use girih_tensor::{DType, Shape};

    use super::*;
    use crate::check::faults;
    use crate::constant::{Act, Span};
    use crate::graph::{Builder, Key, OutputKind};

    const SMALL_KEY: Key =
        Key { rows: 4, sequences: 1, context: 16, output_rows: 1, output: OutputKind::Logits };

    /// An embedding, attention, and then `linear(attention) + embedding`.
    fn model() -> Graph {
        let mut builder = Builder::new(SMALL_KEY);
        let tokens = builder.input("tokens", &[], DType::I32);
        let [table, weight] =
            ["table", "weight"].map(|name| builder.weight(name, Shape::matrix(8, 8), DType::F32));
        let embed = builder.shaped("embed", Op::Embed, &[tokens, table], &[8]);
        let heads = builder.shaped("heads", Op::Reshape, &[embed], &[2, 4]);
        let group = builder.group(Span::Full);
        let [keys, values] = ["keys", "values"].map(|name| builder.state(name, &[2, 4], DType::F32, group));
        builder.write(heads, keys);
        builder.write(heads, values);
        let attend = Op::Attend { scale: 1.0, span: Span::Full, softcap: None };
        let mixed = builder.same("mixed", attend, &[heads, keys, values]);
        let flat = builder.shaped("flat", Op::Reshape, &[mixed], &[8]);
        let projected = builder.shaped("projected", Op::Linear, &[flat, weight], &[8]);
        let sum = builder.same("sum", Op::Add, &[embed, projected]);
        let gated = builder.same("gated", Op::gate(Act::Silu), &[sum, sum]);
        let last = builder.gather("last", gated);
        let logits = builder.shaped("logits", Op::Linear, &[last, table], &[8]);
        builder.finish(logits)
    }

    #[test]
    fn the_gather_moves_to_the_last_attention() {
        let given = model();
        assert_eq!(faults(&given), []);
        let SunkGather { graph, names } = sink_gather(&given).unwrap();
        assert_eq!(faults(&graph), []);
        assert_eq!(names, ["flat", "projected", "sum", "gated"]);
        let line = |node: &Node| {
            let name = |id: &ValueId| graph.value(*id).name.clone();
            let inputs: Vec<String> = node.inputs.iter().map(name).collect();
            format!("{} = {} {}", name(&node.output), node.op.name(), inputs.join(" "))
        };
        let lines: Vec<String> = graph.nodes.iter().map(line).collect();
        let expected = [
            "embed = embed tokens table",
            "embed.gathered = gather embed",
            "heads = reshape embed",
            "keys = write heads",
            "values = write heads",
            "mixed = attend heads keys values",
            "mixed.gathered = gather mixed",
            "flat = reshape mixed.gathered",
            "projected = linear flat weight",
            "sum = add embed.gathered projected",
            "gated = gate sum sum",
            "last = reshape gated",
            "logits = linear last table",
        ];
        assert_eq!(lines, expected);
        for name in ["embed.gathered", "mixed.gathered", "flat", "projected", "sum", "gated", "last"] {
            let value = graph.value(graph.find(name).unwrap());
            assert_eq!((value.outermost, value.shape.extents()[0]), (Extent::OutputRows, 1), "{name}");
        }
    }

    #[test]
    fn a_graph_without_linear_before_the_gather_is_not_rewritten() {
        let mut builder = Builder::new(SMALL_KEY);
        let tokens = builder.input("tokens", &[], DType::I32);
        let table = builder.weight("table", Shape::matrix(8, 8), DType::F32);
        let embed = builder.shaped("embed", Op::Embed, &[tokens, table], &[8]);
        let scaled = builder.same("scaled", Op::Scale { factor: 2.0 }, &[embed]);
        let last = builder.gather("last", scaled);
        let logits = builder.shaped("logits", Op::Linear, &[last, table], &[8]);
        assert!(sink_gather(&builder.finish(logits)).is_none());
    }
}
