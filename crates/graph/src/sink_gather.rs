//! Which nodes compute the output rows of a step only: those behind the last
//! that looks at other rows (elsewhere: last-token pruning). It rewrites a graph,
//! for backends that gain by it.
//!
//! ```text
//! attend → product → add → … → take → norm → logits
//! attend → take → product → add → …       → norm → logits
//!          add of the layer before → take ↗
//! ```
//! A prompt wants one row, or none while it is not complete, so of its last
//! layer all that is done for every row is to put keys and values into state and
//! to attend. Rows do not depend on their neighbours, so the results have the
//! same bits.

use crate::{Extent, Graph, Node, Op, Role, Value, ValueId};

/// A graph whose output rows are taken as early as can be.
#[derive(Clone, Debug, PartialEq)]
pub struct SunkGather {
    /// The graph. Of a value `x` that is taken, the output rows are `x.taken`.
    pub graph: Graph,
    /// The values of which only output rows are made, by name.
    pub names: Vec<String>,
}

/// The graph with its rows taken early; nothing where no product would have
/// fewer of them.
pub fn sink_gather(graph: &Graph) -> Option<SunkGather> {
    let mut takes = graph.nodes.iter().filter(|node| node.op == Op::Gather);
    let (Some(_), None) = (takes.next(), takes.next()) else { return None };
    // What nothing but the take and such values is made of.
    let mut fewer: Vec<bool> = graph.values.iter().map(|value| value.role == Role::Scratch).collect();
    for node in graph.nodes.iter().rev() {
        fewer[node.output.0 as usize] &= works_on_rows(node.op);
        if node.op != Op::Gather && !fewer[node.output.0 as usize] {
            node.inputs.iter().for_each(|id| fewer[id.0 as usize] = false);
        }
    }
    let makes_fewer = |node: &&Node| fewer[node.output.0 as usize];
    graph.nodes.iter().filter(makes_fewer).find(|node| node.op == Op::Linear)?;
    let names = graph.nodes.iter().filter(makes_fewer).map(|node| graph.value(node.output).name.clone());
    Some(SunkGather { names: names.collect(), graph: rewritten(graph, &fewer) })
}

/// Whether each row of an operator's result is made of the same row of its
/// operands and of weights.
fn works_on_rows(op: Op) -> bool {
    match op {
        Op::Norm { .. }
        | Op::Linear
        | Op::Reshape
        | Op::Gate { .. }
        | Op::Add
        | Op::Scale { .. }
        | Op::Softcap { .. } => true,
        Op::Embed | Op::Rope { .. } | Op::Write | Op::Attend { .. } | Op::Gather => false,
    }
}

/// The graph in which the values `fewer` have output rows only, and where what
/// they are made of is taken as soon as it is there.
fn rewritten(graph: &Graph, fewer: &[bool]) -> Graph {
    let is_fewer = |id: ValueId| fewer[id.0 as usize];
    let mut is_taken = vec![false; graph.values.len()];
    for id in graph.nodes.iter().filter(|node| is_fewer(node.output)).flat_map(|node| &node.inputs) {
        is_taken[id.0 as usize] = graph.value(*id).outermost == Extent::Rows && !is_fewer(*id);
    }
    let output_rows = |value: &Value| Value {
        shape: value.shape.with_outermost(graph.key.output_rows as usize),
        outermost: Extent::OutputRows,
        ..value.clone()
    };
    // Behind each value that is taken stand its output rows.
    let (mut values, mut ids) = (Vec::new(), Vec::new());
    for ((value, fewer), is_taken) in graph.values.iter().zip(fewer).zip(&is_taken) {
        ids.push(ValueId(values.len() as u32));
        values.push(if *fewer { output_rows(value) } else { value.clone() });
        if *is_taken {
            let name = format!("{}.taken", value.name);
            values.push(Value { name, role: Role::Scratch, ..output_rows(value) });
        }
    }
    let moved = |id: ValueId| ids[id.0 as usize];
    let taken = |id: ValueId| is_taken[id.0 as usize].then(|| ValueId(moved(id).0 + 1));
    let take = |id: ValueId| Some(Node { op: Op::Gather, inputs: vec![moved(id)], output: taken(id)? });
    let mut nodes: Vec<Node> = graph.input().and_then(take).into_iter().collect();
    for node in &graph.nodes {
        let reads_taken = is_fewer(node.output);
        let inputs = node.inputs.iter().map(|&id| taken(id).filter(|_| reads_taken).unwrap_or(moved(id)));
        let has_them = node.op == Op::Gather && is_fewer(node.inputs[0]);
        let op = if has_them { Op::Reshape } else { node.op };
        nodes.push(Node { op, inputs: inputs.collect(), output: moved(node.output) });
        nodes.extend(take(node.output));
    }
    Graph { key: graph.key, groups: graph.groups.clone(), values, nodes }
}

#[cfg(test)]
mod tests {
    use girih_tensor::{DType, Shape};

    use super::*;
    use crate::{Act, Builder, Key, Span, Variant, faults};

    const KEY: Key = Key { rows: 4, sequences: 1, context: 16, output_rows: 1, variant: Variant::GENERATE };

    /// An embedding, attention, and what follows: `product(attention) + embedding`.
    fn model() -> Graph {
        let mut builder = Builder::new(KEY);
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
        let product = builder.shaped("product", Op::Linear, &[flat, weight], &[8]);
        let sum = builder.same("sum", Op::Add, &[embed, product]);
        let gated = builder.same("gated", Op::Gate { act: Act::Silu }, &[sum, sum]);
        let taken = builder.gather("taken", gated);
        let logits = builder.shaped("logits", Op::Linear, &[taken, table], &[8]);
        builder.finish(logits)
    }

    #[test]
    fn rows_are_taken_behind_the_last_that_looks_at_others() {
        let given = model();
        assert_eq!(faults(&given), []);
        let SunkGather { graph, names } = sink_gather(&given).unwrap();
        assert_eq!(faults(&graph), []);
        assert_eq!(names, ["flat", "product", "sum", "gated"]);
        let line = |node: &Node| {
            let name = |id: &ValueId| graph.value(*id).name.clone();
            let inputs: Vec<String> = node.inputs.iter().map(name).collect();
            format!("{} = {} {}", name(&node.output), node.op.name(), inputs.join(" "))
        };
        let lines: Vec<String> = graph.nodes.iter().map(line).collect();
        let want = [
            "embed = embed tokens table",
            "embed.taken = gather embed",
            "heads = reshape embed",
            "keys = write heads",
            "values = write heads",
            "mixed = attend heads keys values",
            "mixed.taken = gather mixed",
            "flat = reshape mixed.taken",
            "product = linear flat weight",
            "sum = add embed.taken product",
            "gated = gate sum sum",
            "taken = reshape gated",
            "logits = linear taken table",
        ];
        assert_eq!(lines, want);
        for name in ["embed.taken", "mixed.taken", "flat", "product", "sum", "gated", "taken"] {
            let value = graph.value(graph.find(name).unwrap());
            assert_eq!((value.outermost, value.shape.extents()[0]), (Extent::OutputRows, 1), "{name}");
        }
    }

    /// Where rows are taken at once, there is nothing to gain.
    #[test]
    fn what_needs_no_products_before_it_stays() {
        let mut builder = Builder::new(KEY);
        let tokens = builder.input("tokens", &[], DType::I32);
        let table = builder.weight("table", Shape::matrix(8, 8), DType::F32);
        let embed = builder.shaped("embed", Op::Embed, &[tokens, table], &[8]);
        let scaled = builder.same("scaled", Op::Scale { factor: 2.0 }, &[embed]);
        let taken = builder.gather("taken", scaled);
        let logits = builder.shaped("logits", Op::Linear, &[taken, table], &[8]);
        assert!(sink_gather(&builder.finish(logits)).is_none());
    }
}
