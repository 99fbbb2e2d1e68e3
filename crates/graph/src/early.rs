//! Which nodes compute the wanted rows of a step only: those behind the last
//! that looks at other rows. It rewrites a graph, for backends that gain by it.
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

/// A graph whose wanted rows are taken as early as can be.
#[derive(Clone, Debug, PartialEq)]
pub struct Early {
    /// The graph, whose values that are taken, `x.taken`, stand behind all others:
    /// only its nodes are in their order.
    pub graph: Graph,
    /// The values of which only wanted rows are made, by name.
    pub names: Vec<String>,
}

/// The graph with its rows taken early; nothing where no product would have
/// fewer of them.
pub fn early(graph: &Graph) -> Option<Early> {
    let mut takes = graph.nodes.iter().filter(|node| node.op == Op::Take);
    let (take, None) = (takes.next()?, takes.next()) else { return None };
    let mut fewer = vec![false; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        let mut readers = graph.nodes.iter().filter(|reader| reader.inputs.contains(&node.output));
        fewer[node.output.0 as usize] = graph.value(node.output).role == Role::Scratch
            && works_on_rows(node.op)
            && readers.all(|reader| reader == take || fewer[reader.output.0 as usize]);
    }
    let makes_fewer = |node: &&Node| fewer[node.output.0 as usize];
    graph.nodes.iter().filter(makes_fewer).find(|node| node.op == Op::Linear)?;
    let names = graph.nodes.iter().filter(makes_fewer).map(|node| graph.value(node.output).name.clone());
    Some(Early { names: names.collect(), graph: rewritten(graph, take, &fewer) })
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
        Op::Embed | Op::Rope { .. } | Op::Write | Op::Attend { .. } | Op::Take => false,
    }
}

/// The graph in which the values `fewer` have wanted rows only, and where what
/// they are made of is taken as soon as it is there.
fn rewritten(graph: &Graph, take: &Node, fewer: &[bool]) -> Graph {
    let Graph { key, groups, mut values, .. } = graph.clone();
    let wanted = |value: &Value| Value {
        shape: value.shape.with_outermost(key.wanted as usize),
        outermost: Extent::Wanted,
        ..value.clone()
    };
    for (value, _) in values.iter_mut().zip(fewer).filter(|(_, fewer)| **fewer) {
        *value = wanted(value);
    }
    // For each value that is taken, its wanted rows.
    let mut taken: Vec<Option<ValueId>> = vec![None; values.len()];
    for id in graph.nodes.iter().filter(|node| fewer[node.output.0 as usize]).flat_map(|node| &node.inputs) {
        let (index, value) = (id.0 as usize, graph.value(*id));
        if value.outermost == Extent::Rows && !fewer[index] && taken[index].is_none() {
            taken[index] = Some(ValueId(values.len() as u32));
            let name = format!("{}.taken", value.name);
            values.push(Value { name, role: Role::Scratch, ..wanted(value) });
        }
    }
    let takes =
        |id: ValueId| taken[id.0 as usize].map(|output| Node { op: Op::Take, inputs: vec![id], output });
    let mut nodes: Vec<Node> = graph.input().and_then(takes).into_iter().collect();
    for node in &graph.nodes {
        let mut node = node.clone();
        if node.output == take.output && fewer[node.inputs[0].0 as usize] {
            node.op = Op::Reshape;
        } else if fewer[node.output.0 as usize] {
            node.inputs.iter_mut().for_each(|id| *id = taken[id.0 as usize].unwrap_or(*id));
        }
        let taken = takes(node.output);
        nodes.push(node);
        nodes.extend(taken);
    }
    Graph { key, groups, values, nodes }
}

#[cfg(test)]
mod tests {
    use girih_tensor::{DType, Shape};

    use super::*;
    use crate::{Act, Builder, Key, Span, Variant, faults};

    const KEY: Key = Key { rows: 4, lanes: 1, context: 16, wanted: 1, variant: Variant::GENERATE };

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
        let taken = builder.take("taken", gated);
        let logits = builder.shaped("logits", Op::Linear, &[taken, table], &[8]);
        builder.finish(logits)
    }

    #[test]
    fn rows_are_taken_behind_the_last_that_looks_at_others() {
        let given = model();
        assert_eq!(faults(&given), []);
        let Early { graph, names } = early(&given).unwrap();
        assert_eq!(names, ["flat", "product", "sum", "gated"]);
        let line = |node: &Node| {
            let name = |id: &ValueId| graph.value(*id).name.clone();
            let inputs: Vec<String> = node.inputs.iter().map(name).collect();
            format!("{} = {} {}", name(&node.output), node.op.name(), inputs.join(" "))
        };
        let lines: Vec<String> = graph.nodes.iter().map(line).collect();
        let want = [
            "embed = embed tokens table",
            "embed.taken = take embed",
            "heads = reshape embed",
            "keys = write heads",
            "values = write heads",
            "mixed = attend heads keys values",
            "mixed.taken = take mixed",
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
            assert_eq!((value.outermost, value.shape.extents()[0]), (Extent::Wanted, 1), "{name}");
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
        let taken = builder.take("taken", scaled);
        let logits = builder.shaped("logits", Op::Linear, &[taken, table], &[8]);
        assert!(early(&builder.finish(logits)).is_none());
    }
}
