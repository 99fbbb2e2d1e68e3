//! The definition of every op, as plain loops: sums in `f64`, every value
//! rounded once to `f32`. It is slow on purpose; backends are compared with it.

mod attend;
mod memory;
mod rows;
mod state;

use std::collections::HashMap;

use girih_tensor::{Error, Shape, View};

use self::attend::{HeldRows, ScoreRule};
use self::memory::zeroed;
pub use self::state::InterpreterState;
use crate::backend::{BLOCK_POSITIONS, Backend, Input, Refusal, Sequence, Step, WeightSource, step_count};
use crate::description::BackendInfo;
use crate::graph::{Graph, Key, Node};
use crate::memory_plan::{MemoryPlan, PoolBytes};
use crate::numerics::Numerics;
use crate::op::Op;
use crate::output::HostRows;
use crate::value::{Extent, Role, Value, ValueId};

/// The backend that runs each op by its definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

/// Its description.
pub static INFO: BackendInfo = BackendInfo {
    name: "interpreter",
    about: "reference implementation of every op in f32, slow",
    devices: Vec::new,
    options: &[],
    exact: &[],
    is_simulated: false,
    notes: &[],
    open: |_, _| Ok(Box::new(Interpreter)),
};

/// Every weight as `f32`, by name.
#[derive(Debug)]
pub struct InterpreterWeights(HashMap<String, Vec<f32>>);

impl Backend for Interpreter {
    type Weights = InterpreterWeights;
    type State = InterpreterState;
    type Program = Graph;
    type Output = HostRows;

    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn numerics(&self, _: &Graph) -> Numerics {
        Numerics::single()
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    /// Every op: `Evaluation::node` is a `match` without a default arm.
    fn knows(&self, _: Op, _: usize) -> bool {
        true
    }

    fn objections(&self, _: &Graph) -> Vec<Refusal> {
        Vec::new()
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let bytes = |value: &Value| (value.shape.elements() * size_of::<f32>()) as u64;
        let state = graph.values.iter().filter_map(|value| match value.role {
            Role::State(group) => Some((value, u64::from(blocks[group.0 as usize]))),
            _ => None,
        });
        MemoryPlan::on_host(PoolBytes {
            weights: graph.weights().map(|(_, value)| bytes(value)).sum(),
            state: state
                .map(|(v, n)| {
                    n.saturating_mul((v.shape.stride() * BLOCK_POSITIONS * size_of::<f32>()) as u64)
                })
                .fold(0, u64::saturating_add),
            scratch: graph.values.iter().filter(|v| v.role == Role::Scratch).map(bytes).sum(),
            output: HostRows::plan(graph),
            staging: 0,
        })
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<InterpreterWeights, Error> {
        let mut weights = HashMap::new();
        for (_, value) in graph.weights() {
            weights.insert(value.name.clone(), read(value, source)?);
        }
        Ok(InterpreterWeights(weights))
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<InterpreterState, Error> {
        InterpreterState::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, _: &InterpreterWeights) -> Result<Graph, Error> {
        Ok(graph.clone())
    }

    fn output(&self, graph: &Graph) -> Result<HostRows, Error> {
        HostRows::new(graph)
    }

    fn run(
        &self,
        graph: &Graph,
        weights: &InterpreterWeights,
        state: &mut InterpreterState,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        let values = vec![None; graph.values.len()];
        let Step { inputs, sequences, watch } = step;
        let mut evaluation = Evaluation { graph, weights, state, inputs, sequences, values };
        for ((id, _), input) in graph.inputs().zip(inputs) {
            if let Input::Rows(rows) = input {
                evaluation.values[id.0 as usize] = Some(rows.to_vec());
            }
        }
        for node in &graph.nodes {
            evaluation.node(node);
            let value = graph.value(node.output);
            if node.op != Op::Write && watch.wants(&value.name) {
                watch.value(&value.name, &evaluation.shape(value), evaluation.data(node.output));
            }
        }
        let result = graph.output().expect("programs are compiled from graphs without faults");
        let count = step_count(sequences, graph.value(result).outermost);
        output.begin(count)?.copy_from_slice(evaluation.data(result));
        Ok(())
    }
}

/// Reads a weight as `f32` numbers.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<f32>, Error> {
    let mut bytes = zeroed(&value.name, Some(value.dtype.bytes(&value.shape)?))?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut numbers = zeroed(&value.name, Some(value.shape.elements()))?;
    view.unpack_rows(0..view.rows(), &mut numbers);
    Ok(numbers)
}

/// The evaluation of a graph in one step.
struct Evaluation<'a> {
    graph: &'a Graph,
    weights: &'a InterpreterWeights,
    state: &'a mut InterpreterState,
    inputs: &'a [Input<'a>],
    sequences: &'a [Sequence<'a>],
    /// One entry per value of the graph; `None` until its node has run.
    values: Vec<Option<Vec<f32>>>,
}

impl<'a> Evaluation<'a> {
    /// The extents of a value in this step.
    fn shape(&self, value: &Value) -> Shape {
        match value.outermost {
            Extent::Fixed | Extent::Context => value.shape,
            extent => value.shape.with_outermost(step_count(self.sequences, extent)),
        }
    }

    fn data(&self, id: ValueId) -> &[f32] {
        let value = self.graph.value(id);
        match value.role {
            Role::Weight => &self.weights.0[&value.name],
            _ => self.values[id.0 as usize].as_ref().expect("checked: written before it is read"),
        }
    }

    /// What the step brings for an input.
    fn input(&self, id: ValueId) -> Input<'a> {
        let index = self.graph.inputs().position(|(input, _)| input == id);
        self.inputs[index.expect("checked: it is an input")]
    }

    /// The index of a state value among those of the state.
    fn state_index(&self, id: ValueId) -> usize {
        let name = &self.graph.value(id).name;
        let index = self.state.values.iter().position(|value| value.name == *name);
        index.expect("the state was made for this graph")
    }

    /// What attention reads as keys or values.
    fn held(&self, id: ValueId) -> HeldRows<'_> {
        let value = self.graph.value(id);
        match value.role {
            Role::State(_) => HeldRows::State(&self.state.values[self.state_index(id)]),
            _ => HeldRows::Step { rows: self.data(id), inner: value.shape.stride() },
        }
    }

    fn node(&mut self, node: &Node) {
        let inner = self.graph.value(node.inputs[0]).shape;
        let input = |index: usize| self.data(node.inputs[index]);
        let optional = |index: usize| node.inputs.get(index).map(|id| self.data(*id));
        let result = match node.op {
            Op::Embed => {
                let Input::Ids(ids) = self.input(node.inputs[0]) else { unreachable!("checked: ids") };
                rows::embed(ids, input(1), self.graph.value(node.inputs[1]).shape.columns())
            }
            Op::Splice => {
                let Input::Given(given) = self.input(node.inputs[1]) else {
                    unreachable!("checked: given rows")
                };
                rows::splice(input(0), given, inner.stride())
            }
            Op::Norm { epsilon } => rows::norm(input(0), input(1), epsilon),
            Op::LayerNorm { epsilon } => rows::layer_norm(input(0), input(1), optional(2), epsilon),
            Op::Linear => rows::linear(input(0), input(1), optional(2), inner.columns()),
            Op::Reshape => input(0).to_vec(),
            Op::Rope { pairing } => rows::rope(input(0), input(1), pairing, self.sequences, inner.stride()),
            Op::Write => return self.write(node),
            Op::Attend { scale, span, softcap } => {
                let [keys, values] = [1, 2].map(|index| self.held(node.inputs[index]));
                let rule = ScoreRule { scale, span, softcap };
                attend::attend(input(0), inner.extents()[1], keys, values, self.sequences, rule)
            }
            Op::Gate { act } => rows::pairwise(input(0), input(1), |gate, up| rows::act(act, gate) * up),
            Op::Activate { act } => rows::each(input(0), |x| rows::act(act, x)),
            Op::Add => rows::pairwise(input(0), input(1), |a, b| a + b),
            Op::Scale { factor } => rows::each(input(0), |x| x * f64::from(factor)),
            Op::Softcap { cap } => rows::each(input(0), |x| f64::from(cap) * (x / f64::from(cap)).tanh()),
            Op::Gather => rows::gather(input(0), inner.stride(), self.sequences),
            Op::Pool { how } => rows::pool(input(0), inner.stride(), how, self.sequences),
        };
        self.values[node.output.0 as usize] = Some(result);
    }

    /// Stores every row at its position in its sequence's state.
    fn write(&mut self, node: &Node) {
        let index = self.state_index(node.output);
        let rows =
            self.values[node.inputs[0].0 as usize].as_ref().expect("checked: written before it is read");
        let stored = &mut self.state.values[index];
        for sequence in self.sequences {
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                stored.put(sequence, position, &rows[row * stored.inner..(row + 1) * stored.inner]);
            }
        }
    }
}
