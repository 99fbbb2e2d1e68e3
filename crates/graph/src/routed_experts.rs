//! The routed experts of a graph: which nodes they are, and graphs with them alone and without their weights. They are most of a
//! mixture's weights, and a row reads few of them.

use girih_tensor::DType;

use crate::graph::{Builder, Graph, Key, Node, OutputKind};
use crate::input::InputSpec;
use crate::ops::Op;
use crate::value::{Role, Value, ValueId};

/// The operands of `experts` that are rows: those that experts read, and the weights of each row's experts. The others are weights.
const ROW_OPERANDS: usize = 2;

/// Whether a node of a graph is routed experts: several, which a node chose. Adapters, which the inputs of the step choose, are
/// none, and neither is a shared expert, which is alone.
pub fn is_routed(graph: &Graph, node: &Node) -> bool {
    let has_several = |up: &ValueId| graph.value(*up).shape.extents()[0] > 1;
    matches!(node.op, Op::Experts { .. })
        && node.inputs.get(ROW_OPERANDS).is_some_and(has_several)
        && graph.value(node.inputs[1]).role != Role::Input
}

/// Whether a node of [`without_weights`] is routed experts.
pub fn has_no_weights(node: &Node) -> bool {
    matches!(node.op, Op::Experts { .. }) && node.inputs.len() == ROW_OPERANDS
}

/// The graph whose routed experts have no weights: neither their operands nor the values. The checker refuses it; a backend that
/// leaves experts to its caller makes it for itself.
pub fn without_weights(graph: &Graph) -> Graph {
    let mut nodes = graph.nodes.clone();
    for (node, of) in nodes.iter_mut().zip(&graph.nodes) {
        if is_routed(graph, of) {
            node.inputs.truncate(ROW_OPERANDS);
        }
    }
    let mut is_read = vec![false; graph.values.len()];
    nodes.iter().flat_map(|node| &node.inputs).for_each(|id| is_read[id.0 as usize] = true);
    let is_kept = |id: ValueId, value: &Value| value.role != Role::Weight || is_read[id.0 as usize];
    let kept: Vec<ValueId> =
        graph.ids().filter(|(id, value)| is_kept(*id, value)).map(|(id, _)| id).collect();
    let place = |id: &mut ValueId| {
        *id = ValueId(kept.binary_search(id).expect("only weights that nothing reads are left out") as u32);
    };
    for node in &mut nodes {
        node.inputs.iter_mut().chain([&mut node.output]).for_each(place);
    }
    let values = kept.iter().map(|id| graph.value(*id).clone()).collect();
    Graph { key: graph.key, groups: graph.groups.clone(), values, nodes }
}

/// The names and widths of the inputs that stand for the rows that experts read, and for their weights.
fn row_inputs(graph: &Graph, node: &Node) -> [(String, usize); ROW_OPERANDS] {
    let [width, count] = [0, 1].map(|index| graph.value(node.inputs[index]).shape.stride());
    let used = match node.op {
        Op::Experts { used, .. } => used,
        _ => unreachable!("the node is experts"),
    };
    [(format!("rows.{width}"), width), (format!("{}{used}.{count}", InputSpec::CHOSEN), count)]
}

/// The routed experts of a graph as a graph of their own, whose nodes run one by one.
#[derive(Clone, Debug)]
pub struct ExpertsGraph {
    /// The experts of all layers, and their sum, so that every result is read. Experts whose rows have the same widths share the
    /// inputs.
    pub graph: Graph,
    /// The nodes of experts.
    pub nodes: Vec<ExpertsNode>,
}

/// A node of experts in an [`ExpertsGraph`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsNode {
    /// The name of its result.
    pub name: String,
    /// Which inputs of the graph it reads: the rows, and the weights of each row's experts.
    pub inputs: [usize; 2],
}

impl ExpertsGraph {
    /// The experts of a graph without faults. The error is a clause.
    ///
    /// # Errors
    /// When the graph has none, or their results differ in width.
    pub fn of(graph: &Graph) -> Result<ExpertsGraph, String> {
        let rows = graph.key.rows;
        let key = Key { rows, sequences: 1, context: rows, output_rows: 1, output: OutputKind::Hidden };
        let (mut builder, mut inputs, mut nodes) = (Builder::new(key), Vec::new(), Vec::new());
        let mut sum: Option<(ValueId, usize)> = None;
        for (index, node) in graph.nodes.iter().filter(|node| is_routed(graph, node)).enumerate() {
            let result = graph.value(node.output);
            let own = row_inputs(graph, node).map(|(name, width)| {
                inputs.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                    let input = builder.input(&name, &[width], DType::F32);
                    inputs.push((name, input));
                    inputs.len() - 1
                })
            });
            let mut operands: Vec<ValueId> = own.iter().map(|input| inputs[*input].1).collect();
            for id in &node.inputs[ROW_OPERANDS..] {
                let weight = graph.value(*id);
                operands.push(builder.weight(&weight.name, weight.shape, weight.dtype));
            }
            let width = result.shape.stride();
            let term = builder.shaped(&result.name, node.op, &operands, &[width]);
            sum = Some(match sum {
                None => (term, width),
                Some((before, wide)) if wide == width => {
                    (builder.same(&format!("sum.{index}"), Op::Add, &[before, term]), width)
                }
                Some((_, wide)) => {
                    return Err(format!("the results of its experts are {wide} and {width} wide"));
                }
            });
            nodes.push(ExpertsNode { name: result.name.clone(), inputs: own });
        }
        let (sum, _) = sum.ok_or("it has no routed experts")?;
        let output = builder.gather("sum", sum);
        Ok(ExpertsGraph { graph: builder.finish(output), nodes })
    }

    /// The bytes of the widest rows that a node reads and makes, at the graph's key.
    pub fn crossing_bytes(&self) -> u64 {
        let width = self.graph.inputs().map(|(_, input)| input.shape.stride()).sum::<usize>()
            + self.graph.output().map_or(0, |output| self.graph.value(output).shape.stride());
        (width as u64).saturating_mul(u64::from(self.graph.key.rows)).saturating_mul(size_of::<f32>() as u64)
    }
}
