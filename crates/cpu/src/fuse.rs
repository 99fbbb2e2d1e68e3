//! Decides which nodes of a graph become one instruction, and which values are computed by
//! the instruction that reads them. `lower` builds the instructions. A fused instruction
//! yields the same bits as its nodes one by one.

use std::collections::{HashMap, HashSet};

use girih_graph::{GateRule, Graph, Node, Op, Role, ValueId};

use crate::activations::{ActivationKind, PrecisionRule};
use crate::adapter_node::AdapterNode;
use crate::instruction::{ActivationSlot, MatmulEpilogue};
use crate::ops;
use crate::step_values::{StepBuffer, ValueLocation, ValueStore};

/// What adapters add to a matmul.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptedMatmul<'a> {
    pub operands: AdapterNode,
    /// The node that computes it, and the sum of both.
    pub change: &'a Node,
    pub sum: &'a Node,
}

impl AdaptedMatmul<'_> {
    /// What adapters add to a matmul of `graph`, if nothing else reads the matmul or what they add.
    fn of<'a>(graph: &'a Graph, matmul: &Node) -> Option<AdaptedMatmul<'a>> {
        let sum = only_reader(graph, matmul.output).filter(|sum| sum.op == Op::Add)?;
        let added = *sum.inputs.iter().find(|id| **id != matmul.output)?;
        let change = graph.nodes.iter().find(|node| node.output == added)?;
        let operands = AdapterNode::of(graph, change).filter(|node| node.x == matmul.inputs[0])?;
        only_reader(graph, added)?;
        Some(AdaptedMatmul { operands, change, sum })
    }
}

/// The only node that reads a scratch value; `None` if there are several.
fn only_reader(graph: &Graph, value: ValueId) -> Option<&Node> {
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&value));
    let reader = readers.next().filter(|_| graph.value(value).role == Role::Scratch);
    reader.filter(|_| readers.next().is_none())
}

/// The graph with all matmuls of one value moved directly after the first of them, and behind them what adapters add to them.
/// These read only that value, weights, and which adapters rows chose, so they can run there: output rows of that are
/// gathered first of all.
pub(crate) fn grouped(graph: &Graph) -> Graph {
    let mut matmuls: HashMap<ValueId, Vec<Node>> = HashMap::new();
    let is_of_input = |node: &Node| node.op == Op::Gather && graph.value(node.inputs[0]).role == Role::Input;
    let mut moved: HashSet<ValueId> =
        graph.nodes.iter().filter(|node| is_of_input(node)).map(|node| node.output).collect();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        matmuls.entry(node.inputs[0]).or_default().push(node.clone());
    }
    let mut nodes: Vec<Node> = graph.nodes.iter().filter(|node| is_of_input(node)).cloned().collect();
    for node in &graph.nodes {
        match node.op {
            Op::Linear => {
                let matmuls = matmuls.remove(&node.inputs[0]).unwrap_or_default();
                let adapted = matmuls.iter().filter_map(|matmul| AdaptedMatmul::of(graph, matmul));
                let adapted: Vec<AdaptedMatmul<'_>> = adapted.collect();
                let changes = adapted.iter().map(|adapted| adapted.change);
                let of_adapters = changes.chain(adapted.iter().map(|adapted| adapted.sum));
                moved.extend(of_adapters.clone().map(|node| node.output));
                nodes.extend(matmuls.iter().chain(of_adapters).cloned());
            }
            _ if moved.contains(&node.output) => {}
            _ => nodes.push(node.clone()),
        }
    }
    Graph { key: graph.key, groups: graph.groups.clone(), values: graph.values.clone(), nodes }
}

/// Joins names after their common prefix: `a.b.q`, `a.b.k` and `a.c` become `a.b.q+b.k+c`.
pub(crate) fn joined_name(names: &[&str]) -> String {
    let shared = |count: usize| {
        let mut starts = names.iter().map(|name| name.split('.').take(count));
        let first = starts.next().map(Vec::from_iter);
        starts.all(|start| Some(start.collect()) == first)
    };
    let min = names.iter().map(|name| name.split('.').count()).min().unwrap_or(1);
    let count = (1..min).take_while(|&count| shared(count)).last().unwrap_or(0);
    let start: String = names[0].split('.').take(count).flat_map(|part| [part, "."]).collect();
    let ends: Vec<&str> = names.iter().map(|name| &name[start.len()..]).collect();
    start + &ends.join("+")
}

/// What decides which nodes are fused: a graph, where its values lie, and its slots.
pub(crate) struct Fusion<'a> {
    pub graph: &'a Graph,
    /// Where each value lies.
    pub stores: Vec<ValueStore>,
    pub rule: PrecisionRule,
    pub slots: &'a [ActivationSlot],
}

impl Fusion<'_> {
    /// The slot of a matmul's packed activations.
    pub fn slot(&self, node: &Node) -> Option<usize> {
        if node.op != Op::Linear {
            return None;
        }
        let kind = ActivationKind::of_node(self.graph, node, self.rule);
        self.slots.iter().position(|slot| slot.kind == kind)
    }

    /// The number of nodes from `index` on that become one instruction: matmuls of
    /// one value with separate outputs, or writes to state of one group.
    pub fn run_length(&self, index: usize) -> usize {
        let nodes = &self.graph.nodes[index..];
        let max = match nodes[0].op {
            Op::Linear => ops::MAX_MATMULS,
            Op::Write => ops::MAX_WRITES,
            _ => 1,
        };
        let joins = |&count: &usize| nodes[..count].iter().all(|other| self.joins(&nodes[count], other));
        1 + (1..nodes.len().min(max)).take_while(joins).count()
    }

    /// Whether two nodes may be parts of one instruction.
    fn joins(&self, a: &Node, b: &Node) -> bool {
        let role = |node: &Node| self.graph.value(node.output).role;
        match (a.op, b.op) {
            (Op::Linear, Op::Linear) => a.inputs[0] == b.inputs[0] && self.are_separate(a.output, b.output),
            (Op::Write, Op::Write) => a.output != b.output && role(a) == role(b),
            _ => false,
        }
    }

    /// Whether two values share no memory.
    fn are_separate(&self, a: ValueId, b: ValueId) -> bool {
        let range = |id| {
            let len = self.graph.value(id).shape.elements();
            match self.stores[id.0 as usize] {
                ValueStore::Step(ValueLocation { buffer: StepBuffer::Scratch(start), .. }) => {
                    (StepBuffer::Scratch(0), start..start + len)
                }
                ValueStore::Step(ValueLocation { buffer, .. }) => (buffer, 0..len),
                ValueStore::Weight(_) | ValueStore::State(_) => {
                    unreachable!("a result is a value of the step")
                }
            }
        };
        let ((a, range_a), (b, range_b)) = (range(a), range(b));
        a != b || range_a.end <= range_b.start || range_b.end <= range_a.start
    }

    /// What adapters add to each of the `count` matmuls from node `index` on, if the matmuls can add it to their sums: the
    /// matrices have one format and rank, and their nodes follow, first what they add and then the sums.
    ///
    /// The sums are then written while the matmuls run, earlier than the plan assumes. Only what these nodes read can
    /// overlap them: the matmuls' input, of which the products with A are known by then, and values that are not computed.
    pub fn adapters(&self, index: usize, count: usize) -> Vec<Option<AdaptedMatmul<'_>>> {
        let (matmuls, after) = self.graph.nodes[index..].split_at(count);
        let of = |matmul: &Node| match matmul.op {
            Op::Linear => AdaptedMatmul::of(self.graph, matmul),
            _ => None,
        };
        let found: Vec<_> = matmuls.iter().map(of).collect();
        let all = || found.iter().flatten();
        let follow = all().map(|adapted| adapted.change).chain(all().map(|adapted| adapted.sum));
        let format = |adapted: &AdaptedMatmul<'_>| {
            let [a, b] = [adapted.operands.a, adapted.operands.b].map(|weight| self.graph.value(weight));
            (adapted.operands.chosen, a.dtype, a.shape, b.dtype)
        };
        let fits = follow.clone().count() <= after.len()
            && follow.zip(after).all(|(node, next)| node.output == next.output)
            && all().all(|adapted| Some(format(adapted)) == all().next().map(format));
        if fits { found } else { vec![None; count] }
    }

    /// The results of the `count` matmuls from node `index` on, with what adapters add, and the index of the node behind them.
    fn results(&self, index: usize, count: usize) -> (Vec<ValueId>, usize) {
        let (adapters, nodes) = (self.adapters(index, count), &self.graph.nodes[index..index + count]);
        let result = |(node, adapted): (&Node, &Option<AdaptedMatmul<'_>>)| {
            adapted.map_or(node.output, |adapted| adapted.sum.output)
        };
        let results = nodes.iter().zip(&adapters).map(result).collect();
        (results, index + count + 2 * adapters.iter().flatten().count())
    }

    /// The node behind the `count` matmuls from node `index` on, by its index, if they can apply it to
    /// their sums: an add of a residual, or a gate.
    ///
    /// Its result is then written while the matmuls run, earlier than the plan
    /// assumes. Only the matmuls' input can overlap it, and that is packed already.
    pub fn epilogue(&self, index: usize, count: usize) -> Option<(MatmulEpilogue, usize)> {
        let (results, end) = self.results(index, count);
        let next = self.graph.nodes.get(end)?;
        let only_reader = results.iter().all(|value| only_reader(self.graph, *value) == Some(next));
        let epilogue = match (next.op, &results[..]) {
            (Op::Add, [result]) if only_reader => {
                let residual = *next.inputs.iter().find(|id| *id != result)?;
                MatmulEpilogue::Add { residual }
            }
            (Op::Gate { act, limit, offset }, [_, _]) if only_reader && next.inputs == results => {
                let nodes = &self.graph.nodes[index..];
                (self.slot(&nodes[0]) == self.slot(&nodes[1])).then_some(())?;
                MatmulEpilogue::Gate { rule: GateRule { act, limit, offset } }
            }
            _ => return None,
        };
        Some((epilogue, end))
    }

    /// The slot into which the value of node `index` can be packed while it is computed,
    /// without being stored: all its readers are matmuls that read the same slot, and
    /// nothing else is packed there before the last of them.
    pub fn packed_into(&self, index: usize) -> Option<usize> {
        let node = &self.graph.nodes[index];
        let (value, row) = (node.output, self.graph.value(node.output));
        let makes_rows = match node.op {
            Op::Norm { .. } => row.shape.columns() == row.shape.stride(),
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
        // Another norm or gate might be packed there in between.
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
    use girih_graph::{Builder, Key, OutputKind, faults};
    use girih_tensor::{DType, Shape};

    use super::*;

    #[test]
    fn names_are_joined_behind_their_common_prefix() {
        assert_eq!(joined_name(&["a.0.b.q", "a.0.b.k", "a.0.b.v"]), "a.0.b.q+k+v");
        assert_eq!(joined_name(&["a.0.b.o", "a.0.c"]), "a.0.b.o+c");
        assert_eq!(joined_name(&["a.b", "a.b.c"]), "a.b+b.c");
        assert_eq!(joined_name(&["x", "y.z"]), "x+y.z");
        assert_eq!(joined_name(&["a.logits"]), "a.logits");
    }

    /// A later matmul moves directly after the first one of the same value; other nodes
    /// keep their order.
    #[test]
    fn matmuls_of_one_value_are_grouped() {
        let output = OutputKind::Hidden;
        let mut builder = Builder::new(Key { rows: 4, sequences: 1, context: 4, output_rows: 4, output });
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
