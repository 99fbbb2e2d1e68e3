//! A test case of one step, whose results are compared with the interpreter's.

use girih_cpu::Cpu;
use girih_graph::backend::Inputs;
use girih_graph::interpret::Interpreter;
use girih_graph::{Builder, Graph, InputKind, ValueId};

use crate::fixture::{Source, TestSequence, disagreement, on, step};

/// A graph and a step of it.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub source: Source,
    pub tokens: Vec<u32>,
    pub embeddings: Vec<f32>,
    pub sequences: Vec<TestSequence>,
    /// The largest difference from the interpreter allowed for each value.
    pub bounds: Vec<f64>,
}

impl Case {
    /// The first difference between `cpu` and the interpreter, if there is one.
    pub fn disagreement(&self, cpu: Cpu) -> Option<String> {
        let inputs = match self.graph.key.variant.input {
            InputKind::Tokens => Input::Ids(&self.tokens),
            InputKind::Embeddings => Input::Rows(&self.embeddings),
        };
        let blocks = 16;
        let want = step(&mut *on(Interpreter, &self.graph, &self.source, blocks), inputs, &self.sequences);
        let got = step(&mut *on(cpu, &self.graph, &self.source, blocks), inputs, &self.sequences);
        disagreement(&got, &want, &self.bounds).map(|what| format!("{}: {what}", self.name))
    }
}

/// The graph that yields the output rows of `value`.
pub fn finish(mut builder: Builder, value: ValueId) -> Graph {
    let taken = builder.gather("taken", value);
    builder.finish(taken)
}
