//! Which nodes of a graph become one instruction, and which values are made in
//! passing by the instruction that needs them. It decides and builds nothing;
//! whatever it joins has the bits that its parts would have one by one.

use std::collections::HashMap;

use girih_graph::{Graph, Node, Op, Role, ValueId};

use crate::lower::{At, Finish, Lowering};
use crate::ops;

/// The graph with all products of one value behind the first of them. They read
/// that value and weights only, so each of them could as well have come then.
pub(crate) fn grouped(graph: &Graph) -> Graph {
    let mut groups: HashMap<ValueId, Vec<Node>> = HashMap::new();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        groups.entry(node.inputs[0]).or_default().push(node.clone());
    }
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        match node.op {
            Op::Linear => nodes.extend(groups.remove(&node.inputs[0]).unwrap_or_default()),
            _ => nodes.push(node.clone()),
        }
    }
    Graph { key: graph.key, groups: graph.groups.clone(), values: graph.values.clone(), nodes }
}

/// One name for several: `a.b.q`, `a.b.k` and `a.c` are `a.b.q+b.k+c`.
pub(crate) fn joined_name(names: &[&str]) -> String {
    let shared = |count: usize| {
        let mut starts = names.iter().map(|name| name.split('.').take(count));
        let first = starts.next().map(Vec::from_iter);
        starts.all(|start| Some(start.collect()) == first)
    };
    let least = names.iter().map(|name| name.split('.').count()).min().unwrap_or(1);
    let count = (1..least).take_while(|&count| shared(count)).last().unwrap_or(0);
    let start: String = names[0].split('.').take(count).flat_map(|part| [part, "."]).collect();
    let ends: Vec<&str> = names.iter().map(|name| &name[start.len()..]).collect();
    start + &ends.join("+")
}

impl Lowering<'_> {
    /// How many nodes from `index` on are one instruction: products of one value
    /// that write apart from each other, or writes to state of one group.
    pub fn together(&self, index: usize) -> usize {
        let nodes = &self.graph.nodes[index..];
        let most = match nodes[0].op {
            Op::Linear => ops::MOST_PRODUCTS,
            Op::Write => ops::MOST_WRITES,
            _ => 1,
        };
        let joins = |&count: &usize| nodes[..count].iter().all(|other| self.joins(&nodes[count], other));
        1 + (1..nodes.len().min(most)).take_while(joins).count()
    }

    /// Whether two nodes may be parts of one instruction.
    fn joins(&self, a: &Node, b: &Node) -> bool {
        let role = |node: &Node| self.graph.value(node.output).role;
        match (a.op, b.op) {
            (Op::Linear, Op::Linear) => a.inputs[0] == b.inputs[0] && self.apart(a.output, b.output),
            (Op::Write, Op::Write) => a.output != b.output && role(a) == role(b),
            _ => false,
        }
    }

    /// Whether two values share no memory.
    fn apart(&self, a: ValueId, b: ValueId) -> bool {
        let range = |id| {
            let (place, len) = (self.place(id), self.graph.value(id).shape.elements());
            match place.at {
                At::Scratch(start) => (At::Scratch(0), start..start + len),
                at => (at, 0..len),
            }
        };
        let ((a, range_a), (b, range_b)) = (range(a), range(b));
        a != b || range_a.end <= range_b.start || range_b.end <= range_a.start
    }

    /// The only node that reads a value which lives within the step.
    fn reader(&self, value: ValueId) -> Option<&Node> {
        let mut readers = self.graph.nodes.iter().filter(|node| node.inputs.contains(&value));
        let reader = readers.next().filter(|_| self.graph.value(value).role == Role::Scratch);
        reader.filter(|_| readers.next().is_none())
    }

    /// What the products that begin at node `index` do with their results for the
    /// node that follows: the sum with a residual, or the gate.
    ///
    /// The result of that node is then written a little earlier than its plan
    /// says, while the products run; what has died since is what they read, and
    /// that has been arranged before.
    pub fn finish(&self, index: usize, count: usize) -> Option<Finish> {
        let nodes = &self.graph.nodes[index..index + count];
        let next = self.graph.nodes.get(index + count)?;
        let alone = nodes.iter().all(|node| self.reader(node.output) == Some(next));
        match (next.op, nodes) {
            (Op::Add, [product]) if alone => {
                let residual = *next.inputs.iter().find(|&&id| id != product.output)?;
                Some(Finish::Add { residual: self.place(residual) })
            }
            (Op::Gate { act }, [gate, up]) if alone && next.inputs == [gate.output, up.output] => {
                (self.slot(gate) == self.slot(up)).then_some(Finish::Gate { act })
            }
            _ => None,
        }
    }

    /// Whether the heads that node `index` turns are rotated on their way into
    /// state: they are for nothing else, and nothing comes in between.
    pub fn turned_in_passing(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        if !matches!(node.op, Op::Rope { .. }) || index + 1 == self.graph.nodes.len() {
            return false;
        }
        let writes = &self.graph.nodes[index + 1..];
        let writes = &writes[..self.together(index + 1)];
        self.reader(node.output).is_some_and(|reader| reader.op == Op::Write && writes.contains(reader))
    }

    /// The slot that the readers of node `index` take its value from, if it
    /// can be arranged there while it is made: all readers are products that
    /// take it from the same slot, and nothing else is arranged there before
    /// the last of them.
    pub fn joined(&self, index: usize) -> Option<usize> {
        let node = &self.graph.nodes[index];
        let (value, row) = (node.output, self.graph.value(node.output));
        let makes_rows = match node.op {
            Op::Norm { .. } => self.graph.value(node.inputs[1]).shape.elements() == row.shape.stride(),
            Op::Gate { .. } => true,
            _ => false,
        };
        if !makes_rows || row.role != Role::Scratch {
            return None;
        }
        let after = || self.graph.nodes[index + 1..].iter();
        let last = after().rposition(|reader| reader.inputs.contains(&value))?;
        let mut slots =
            after().take(last + 1).filter(|reader| reader.inputs.contains(&value)).map(|reader| {
                self.slot(reader).filter(|_| reader.inputs.iter().filter(|id| **id == value).count() == 1)
            });
        let slot = slots.next()??;
        let one_slot = slots.all(|other| other == Some(slot));
        // Another norm or gate might be arranged there meanwhile, too.
        let undisturbed = after().take(last + 1).all(|between| match between.op {
            Op::Linear => self.slot(between) != Some(slot) || between.inputs[0] == value,
            Op::Norm { .. } | Op::Gate { .. } => {
                after().all(|reader| reader.inputs[0] != between.output || self.slot(reader) != Some(slot))
            }
            _ => true,
        });
        (one_slot && undisturbed).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Builder, InputKind, Key, OutputKind, Variant, faults};
    use girih_tensor::{DType, Shape};

    use super::*;

    #[test]
    fn names_are_joined_behind_what_they_share() {
        assert_eq!(joined_name(&["a.0.b.q", "a.0.b.k", "a.0.b.v"]), "a.0.b.q+k+v");
        assert_eq!(joined_name(&["a.0.b.o", "a.0.c"]), "a.0.b.o+c");
        assert_eq!(joined_name(&["a.b", "a.b.c"]), "a.b+b.c");
        assert_eq!(joined_name(&["x", "y.z"]), "x+y.z");
        assert_eq!(joined_name(&["a.logits"]), "a.logits");
    }

    /// A product that stands late in the graph's text comes with the first of
    /// its value; everything else keeps its order.
    #[test]
    fn products_of_one_value_stand_together() {
        let variant = Variant { input: InputKind::Embeddings, output: OutputKind::Hidden };
        let mut builder = Builder::new(Key { rows: 4, sequences: 1, context: 4, output_rows: 4, variant });
        let x = builder.input("x", &[8], DType::F32);
        let weight = builder.weight("w", Shape::matrix(8, 8), DType::F32);
        let a = builder.shaped("a", Op::Linear, &[x, weight], &[8]);
        let b = builder.same("b", Op::Scale { factor: 2.0 }, &[a]);
        let c = builder.shaped("c", Op::Linear, &[b, weight], &[8]);
        let d = builder.shaped("d", Op::Linear, &[x, weight], &[8]);
        let e = builder.same("e", Op::Add, &[c, d]);
        let f = builder.gather("f", e);
        let given = builder.finish(f);
        assert_eq!(faults(&given), []);
        let graph = grouped(&given);
        let names: Vec<&str> = graph.nodes.iter().map(|node| &graph.value(node.output).name[..]).collect();
        assert_eq!(names, ["a", "d", "b", "c", "e", "f"]);
    }
}
