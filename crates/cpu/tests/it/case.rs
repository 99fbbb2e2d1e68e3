//! A test case of one step, whose results are compared with the interpreter's.

use girih_cpu::Cpu;
use girih_graph::backend::{GivenRows, Input};
use girih_graph::interpret::Interpreter;
use girih_graph::{Builder, Graph, ValueId};

use crate::fixture::{Source, TestSequence, disagreement, on, step_of};

/// What a step brings for one input.
pub enum TestInput {
    Ids(Vec<u32>),
    Rows(Vec<f32>),
    /// The first row of each run of given rows, and their values.
    Given(Vec<(u32, Vec<f32>)>),
}

/// A graph and a step of it.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub source: Source,
    /// In the graph's order.
    pub inputs: Vec<TestInput>,
    pub sequences: Vec<TestSequence>,
    /// The largest difference from the interpreter allowed for each value.
    pub bounds: Vec<f64>,
}

impl Case {
    /// The first difference between `cpu` and the interpreter, if there is one.
    pub fn disagreement(&self, cpu: Cpu) -> Option<String> {
        self.disagreement_of(cpu, &self.graph)
    }

    /// The first difference between `cpu` with another graph and the interpreter.
    pub fn disagreement_of(&self, cpu: Cpu, graph: &Graph) -> Option<String> {
        let given: Vec<Vec<GivenRows<'_>>> = self.inputs.iter().map(TestInput::given).collect();
        let inputs: Vec<Input<'_>> =
            self.inputs.iter().zip(&given).map(|(input, given)| input.lent(given)).collect();
        let blocks = 16;
        let want =
            step_of(&mut *on(Interpreter, &self.graph, &self.source, blocks), &inputs, &self.sequences);
        let got = step_of(&mut *on(cpu, graph, &self.source, blocks), &inputs, &self.sequences);
        disagreement(&got, &want, &self.bounds).map(|what| format!("{}: {what}", self.name))
    }
}

impl TestInput {
    /// The runs of given rows; none for other kinds of input.
    fn given(&self) -> Vec<GivenRows<'_>> {
        match self {
            TestInput::Given(runs) => {
                runs.iter().map(|(first_row, values)| GivenRows { first_row: *first_row, values }).collect()
            }
            TestInput::Ids(_) | TestInput::Rows(_) => Vec::new(),
        }
    }

    fn lent<'a>(&'a self, given: &'a [GivenRows<'a>]) -> Input<'a> {
        match self {
            TestInput::Ids(ids) => Input::Ids(ids),
            TestInput::Rows(values) => Input::Rows(values),
            TestInput::Given(_) => Input::Given(given),
        }
    }
}

/// The graph that yields the output rows of `value`.
pub fn finish(mut builder: Builder, value: ValueId) -> Graph {
    let taken = builder.gather("taken", value);
    builder.finish(taken)
}
