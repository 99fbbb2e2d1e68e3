//! Which buffer of scratch memory holds which value: values whose lifetimes do not overlap share one.
//!
//! Each value has a buffer of its own while it lives, because a driver orders launches that share a written buffer.

use girih_graph::{Graph, Node, Op, Role, ValueId};

use crate::group::JoinedNodes;

/// The buffers of a list of launches, by index into the sizes of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// One for each value of the graph; `None` for weights and state.
    values: Vec<Option<usize>>,
    /// The buffers that each node needs beside its operands and its result.
    temporary: Vec<Vec<usize>>,
}

/// The buffers in use while slots are assigned.
struct Assignment<'a> {
    sizes: &'a mut Vec<u64>,
    is_free: Vec<bool>,
}

impl Assignment<'_> {
    /// The smallest free buffer that suffices; else the largest free one grows; else there is a new one.
    fn acquire(&mut self, bytes: u64) -> usize {
        let free = || (0..self.sizes.len()).filter(|index| self.is_free[*index]);
        let fitting =
            free().filter(|index| self.sizes[*index] >= bytes).min_by_key(|index| self.sizes[*index]);
        let index = match fitting.or_else(|| free().max_by_key(|index| self.sizes[*index])) {
            Some(index) => index,
            None => {
                self.sizes.push(0);
                self.is_free.push(false);
                self.sizes.len() - 1
            }
        };
        self.sizes[index] = self.sizes[index].max(bytes);
        self.is_free[index] = false;
        index
    }
}

/// The bytes of a value of the step at the graph's key.
pub(crate) fn value_bytes(graph: &Graph, id: ValueId) -> u64 {
    graph.value(id).shape.elements() as u64 * size_of::<f32>() as u64
}

/// The value whose buffer each value has: its own, or that of what it reshapes.
fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = graph.ids().map(|(id, _)| id).collect();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Reshape) {
        roots[node.output.0 as usize] = roots[node.inputs[0].0 as usize];
    }
    roots
}

impl Slots {
    /// Assigns buffers of a pool, whose sizes grow as needed. `temporary` has the bytes that a node needs beside its
    /// values.
    pub fn of(
        graph: &Graph,
        groups: &JoinedNodes,
        temporary: impl Fn(&Node) -> Vec<u64>,
        sizes: &mut Vec<u64>,
    ) -> Slots {
        let roots = roots(graph);
        let root = |id: ValueId| roots[id.0 as usize].0 as usize;
        let mut last = vec![0; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            let late = groups.late(index);
            node.inputs
                .iter()
                .copied()
                .chain([node.output])
                .chain(late)
                .for_each(|id| last[root(id)] = index);
        }
        let is_free = vec![true; sizes.len()];
        let mut assignment = Assignment { sizes, is_free };
        let mut values = vec![None; graph.values.len()];
        let is_step =
            |id: ValueId| matches!(graph.value(id).role, Role::Input | Role::Scratch | Role::Output);
        for (id, value) in graph.inputs() {
            debug_assert_eq!(value.role, Role::Input);
            values[id.0 as usize] = Some(assignment.acquire(value_bytes(graph, id)));
        }
        // The result is read after the last node.
        let kept = graph.output().map(root);
        let mut all_temporary = Vec::with_capacity(graph.nodes.len());
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in groups.early(index).chain([node.output]) {
                if is_step(id) && values[root(id)].is_none() {
                    values[root(id)] = Some(assignment.acquire(value_bytes(graph, id)));
                }
            }
            let needs: Vec<usize> =
                temporary(node).into_iter().map(|bytes| assignment.acquire(bytes)).collect();
            needs.iter().for_each(|slot| assignment.is_free[*slot] = true);
            all_temporary.push(needs);
            for id in node.inputs.iter().copied().chain([node.output]).chain(groups.late(index)) {
                let id = root(id);
                if last[id] == index
                    && Some(id) != kept
                    && let Some(slot) = values[id]
                {
                    assignment.is_free[slot] = true;
                }
            }
        }
        let values = roots.iter().map(|root| values[root.0 as usize]).collect();
        Slots { values, temporary: all_temporary }
    }

    /// The buffer of a value of the step.
    pub fn value(&self, id: ValueId) -> Option<usize> {
        self.values[id.0 as usize]
    }

    /// The buffers that a node needs beside its values.
    pub fn temporary(&self, node: usize) -> &[usize] {
        &self.temporary[node]
    }
}
