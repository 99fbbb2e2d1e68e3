//! Runs a graph by the definition of every op: plain loops, sums in `f64`, every value rounded once
//! to `f32`. It is slow on purpose; backends are compared with it.

mod delta_rule;
mod sequential;
mod values;
mod weights;

use girih_tensor::Error;

pub use self::values::Values;
pub use self::weights::{InterpreterWeights, WeightRows};
use crate::backend::{Backend, Refusal, Step, Watch, WeightSource, step_count};
use crate::description::{BackendDevice, BackendInfo, DriverFiles};
use crate::graph::{Graph, Key};
use crate::memory_plan::{MemoryPlan, PoolBytes};
use crate::numerics::Numerics;
use crate::ops::AppliedOp;
use crate::output::HostRows;
use crate::state::PositionMajor;
use crate::value::{Role, Value};

/// The backend that runs each op by its definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

/// Its description.
pub static INFO: BackendInfo = BackendInfo {
    name: "interpreter",
    about: "reference implementation of every op in f32, slow",
    devices: |_| Ok(vec![BackendDevice::only("this program")]),
    options: &[],
    exact: &[],
    driver: DriverFiles::NONE,
    is_simulated: false,
    notes: &[],
    open: |_, _| Ok(Box::new(Interpreter)),
};

impl Backend for Interpreter {
    type Weights = InterpreterWeights;
    type State = PositionMajor;
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

    /// Every op: [`Values`] computes them by a `match` without a default arm.
    fn knows(&self, _: &AppliedOp<&Value>) -> bool {
        true
    }

    fn objections(&self, _: &Graph) -> Vec<Refusal> {
        Vec::new()
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let bytes = |value: &Value| (value.shape.elements() * size_of::<f32>()) as u64;
        MemoryPlan::on_host(PoolBytes {
            weights: graph.weights().map(|(_, value)| bytes(value)).sum(),
            state: PositionMajor::plan(graph, blocks),
            scratch: graph.values.iter().filter(|v| v.role == Role::Scratch).map(bytes).sum(),
            output: HostRows::plan(graph),
            ..PoolBytes::default()
        })
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<InterpreterWeights, Error> {
        InterpreterWeights::read(graph, source)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<PositionMajor, Error> {
        PositionMajor::new(graph, blocks)
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
        state: &mut PositionMajor,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        let Step { inputs, sequences, watch } = step;
        let mut values = Values::new(graph, sequences);
        graph.inputs().zip(inputs).for_each(|((id, _), input)| values.bring(id, *input));
        for index in 0..graph.nodes.len() {
            run_watched(graph, index, &mut values, weights, state, watch)?;
        }
        let result = graph.output().expect("programs are compiled from graphs without faults");
        let computed = values.take(result).expect("a node computes the output");
        let count = step_count(sequences, graph.value(result).outermost);
        output.begin(count)?.copy_from_slice(&computed);
        Ok(())
    }

    fn run_node(
        &self,
        graph: &Graph,
        weights: &InterpreterWeights,
        state: &mut PositionMajor,
        _: &mut HostRows,
        step: Step<'_>,
        node: &str,
    ) -> Result<(), Error> {
        let Step { inputs, sequences, watch } = step;
        let mut values = Values::new(graph, sequences);
        graph.inputs().zip(inputs).for_each(|((id, _), input)| values.bring(id, *input));
        let index = graph.nodes.iter().position(|of| graph.value(of.output).name == node);
        let absent = || Error::new(format!("the program has no node '{node}'; this is a bug in girih"));
        run_watched(graph, index.ok_or_else(absent)?, &mut values, weights, state, watch)
    }
}

/// Computes a node, and hands its result to the watch.
fn run_watched(
    graph: &Graph,
    index: usize,
    values: &mut Values<'_>,
    weights: &InterpreterWeights,
    state: &mut PositionMajor,
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    values.run(index, weights, state)?;
    let output = graph.nodes[index].output;
    let name = &graph.value(output).name;
    if watch.wants(name)
        && let Some(computed) = values.get(output)
    {
        watch.value(name, &values.shape(output), computed);
    }
    Ok(())
}
