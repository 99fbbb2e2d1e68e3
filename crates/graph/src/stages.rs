//! A graph cut between two layers into two stages, each a graph of its own, so that two backends run a model one after the
//! other: a pipeline of two stages.

use std::ops::Range;

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use crate::graph::{Graph, Key, Node, OutputKind};
use crate::ops::Op;
use crate::value::{Extent, Role, Value, ValueId};

/// The two stages of a graph.
#[derive(Clone, Debug)]
pub struct GraphStages {
    /// Computes the nodes before the cut. A row of its output has the crossing values of a row, one after another; all rows
    /// must be output rows.
    pub first: Graph,
    /// Computes the nodes behind the cut. The crossing values are inputs of their names.
    pub last: Graph,
    /// The values that cross the cut, in the order in which a row of the first stage's output has them.
    pub crossing: Vec<CrossingValue>,
}

/// A value that the first stage computes and the last one reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossingValue {
    /// Its name.
    pub name: String,
    /// The numbers of a row.
    pub width: usize,
}

/// The layer of a value, by its name `layers.{i}.…`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

/// The layer of a node.
fn layer_of_node(graph: &Graph, node: &Node) -> Option<usize> {
    layer_of(&graph.value(node.output).name)
}

/// The number of layers of a graph.
pub fn layer_count(graph: &Graph) -> usize {
    graph.nodes.iter().filter_map(|node| layer_of_node(graph, node)).max().map_or(0, |last| last + 1)
}

impl GraphStages {
    /// Cuts a graph without faults before a layer.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when there is no such layer, or when a layer behind the cut reads state that
    /// one before it writes.
    pub fn of(graph: &Graph, layer: usize) -> Result<GraphStages> {
        let refused = |sentence: String| Error::with_kind(ErrorKind::Refused, sentence);
        let is_behind = |node: &Node| layer_of_node(graph, node).is_some_and(|own| own >= layer);
        let Some(cut) = graph.nodes.iter().position(is_behind) else {
            let layers = layer_count(graph);
            return Err(refused(format!(
                "the model cannot be cut before layer {layer}: it has {layers} layers"
            )));
        };
        let crossing = crossing(graph, cut);
        if crossing.is_empty() {
            return Err(refused(format!(
                "the model cannot be cut before layer {layer}: nothing comes before it"
            )));
        }
        if let Some(id) = crossing.iter().find(|id| matches!(graph.value(**id).role, Role::State(_))) {
            let name = &graph.value(*id).name;
            return Err(refused(format!(
                "the model cannot be cut before layer {layer}, because layers behind it read the state '{name}' of a layer before it: \
                 cut before an earlier layer"
            )));
        }
        let width = |id: &ValueId| {
            let value = graph.value(*id);
            CrossingValue { name: value.name.clone(), width: value.shape.stride() }
        };
        Ok(GraphStages {
            first: first_stage(graph, cut, &crossing)?,
            last: part(graph, cut..graph.nodes.len(), &crossing).0,
            crossing: crossing.iter().map(width).collect(),
        })
    }

    /// The numbers of a row of the first stage's output.
    pub fn width(&self) -> usize {
        self.crossing.iter().map(|value| value.width).sum()
    }
}

/// The values that nodes before the cut make and nodes behind it read, in the graph's order.
fn crossing(graph: &Graph, cut: usize) -> Vec<ValueId> {
    let (before, behind) = graph.nodes.split_at(cut);
    let is_made = |id: &ValueId| before.iter().any(|node| node.output == *id);
    let mut read: Vec<ValueId> = behind.iter().flat_map(|node| node.inputs.iter().copied()).collect();
    read.sort_unstable();
    read.dedup();
    read.retain(is_made);
    read
}

/// The nodes of a range with the values that they use, as a graph, and where it has each value. Values of `inputs` become
/// inputs.
fn part(graph: &Graph, nodes: Range<usize>, inputs: &[ValueId]) -> (Graph, impl Fn(ValueId) -> ValueId) {
    let nodes = &graph.nodes[nodes];
    let mut used: Vec<ValueId> =
        nodes.iter().flat_map(|node| node.inputs.iter().copied().chain([node.output])).collect();
    used.sort_unstable();
    used.dedup();
    let value = |id: &ValueId| {
        let value = graph.value(*id).clone();
        if inputs.contains(id) { Value { role: Role::Input, ..value } } else { value }
    };
    let values = used.iter().map(value).collect();
    let place = move |id: ValueId| ValueId(used.binary_search(&id).expect("the part uses the value") as u32);
    let node = |node: &Node| Node {
        op: node.op,
        inputs: node.inputs.iter().map(|id| place(*id)).collect(),
        output: place(node.output),
    };
    let nodes = nodes.iter().map(node).collect();
    (Graph { key: graph.key, groups: graph.groups.clone(), values, nodes }, place)
}

/// The nodes before the cut, and those that make one output of the crossing values. There is at least one.
fn first_stage(graph: &Graph, cut: usize, crossing: &[ValueId]) -> Result<Graph> {
    let (mut stage, place) = part(graph, 0..cut, &[]);
    let rows = graph.key.rows as usize;
    stage.key = Key { output_rows: graph.key.rows, output: OutputKind::Hidden, ..graph.key };
    let mut joined: Option<(ValueId, usize)> = None;
    // `concat` joins heads, so that each value is a head of its row.
    for (index, id) in crossing.iter().enumerate() {
        let width = graph.value(*id).shape.stride();
        let own = append(
            &mut stage,
            &format!("stage.value.{index}"),
            Op::Reshape,
            &[place(*id)],
            &[rows, 1, width],
        )?;
        joined = Some(match joined {
            None => (own, width),
            Some((before, wide)) => {
                let name = format!("stage.values.{index}");
                (
                    append(&mut stage, &name, Op::Concat, &[before, own], &[rows, 1, wide + width])?,
                    wide + width,
                )
            }
        });
    }
    let (joined, width) = joined.expect("something crosses a cut");
    let flat = append(&mut stage, "stage.rows", Op::Reshape, &[joined], &[rows, width])?;
    let result = append(&mut stage, "stage.result", Op::Gather, &[flat], &[rows, width])?;
    let result = &mut stage.values[result.0 as usize];
    (result.role, result.outermost) = (Role::Output, Extent::OutputRows);
    Ok(stage)
}

/// Appends a node whose result has a row for each row of the step.
fn append(graph: &mut Graph, name: &str, op: Op, inputs: &[ValueId], extents: &[usize]) -> Result<ValueId> {
    let (shape, output) = (Shape::new(extents)?, ValueId(graph.values.len() as u32));
    let (name, dtype, role) = (name.to_owned(), DType::F32, Role::Scratch);
    graph.values.push(Value { name, shape, dtype, role, outermost: Extent::Rows });
    graph.nodes.push(Node { op, inputs: inputs.to_vec(), output });
    Ok(output)
}
