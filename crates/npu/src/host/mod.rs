//! What stays on the host: the work between two programs of the array. Each
//! kind of it is a [`HostKernel`]; all of them see one state.

mod attend;
mod state;

use girih_graph::backend::{Inputs, Sequence};
use girih_graph::{Extent, Graph, Node, Op, Value};
use girih_tensor::{Error, Result, reference};

pub use state::Cache;

/// One kind of work of the host.
pub trait HostKernel {
    /// Computes the result for the rows of the step; nothing if what it
    /// writes is state.
    ///
    /// # Errors
    /// When the operands are not those of its op.
    fn compute(&self, job: &Job<'_>, state: &mut Cache) -> Result<Vec<f32>>;

    /// Floating-point operations and bytes of memory that it takes, for the
    /// time of the host.
    fn work(&self, job: &Job<'_>) -> Work;
}

/// What a piece of host work costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// One node's operands in one step.
pub struct Job<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// The operands that are values of the step, rows that count one after
    /// another; empty for weights and state.
    pub operands: &'a [Vec<f32>],
    /// Where weights come from.
    pub weights: &'a dyn Rows,
    /// What went into the step.
    pub inputs: Inputs<'a>,
    /// The step's sequences.
    pub sequences: &'a [Sequence<'a>],
}

/// Weights, row by row.
pub trait Rows {
    /// Row `row` of the weight of this name.
    ///
    /// # Errors
    /// When there is no such weight or row.
    fn row(&self, name: &str, row: usize) -> Result<Vec<f32>>;
}

/// The kernel of an op, if the host has one.
pub fn kernel(op: Op) -> Option<Box<dyn HostKernel>> {
    Some(match op {
        Op::Embed => Box::new(Embed),
        Op::Gather => Box::new(Take),
        Op::Norm { epsilon } => Box::new(Norm { epsilon }),
        Op::Write => Box::new(Write),
        Op::Scale { factor } => Box::new(Scale { factor }),
        Op::Softcap { cap } => Box::new(Softcap { cap }),
        Op::Attend { scale, span, softcap } => Box::new(attend::Attend { scale, span, softcap }),
        _ => return None,
    })
}

impl Job<'_> {
    fn operand(&self, index: usize) -> Result<&[f32]> {
        let found = self.operands.get(index).map(Vec::as_slice);
        found.ok_or_else(|| Error::new(format!("{} lacks operand {index}", self.node.op.name())))
    }

    /// The name of an operand.
    fn name(&self, index: usize) -> &str {
        &self.graph.value(self.node.inputs[index]).name
    }

    /// Values in a row of an operand.
    fn stride(&self, index: usize) -> usize {
        self.graph.value(self.node.inputs[index]).shape.stride()
    }

    /// Numbers of a value in this step.
    pub fn count(&self, value: &Value) -> usize {
        let rows = match value.outermost {
            Extent::Rows => self.sequences.last().map_or(0, |sequence| sequence.rows.end as usize),
            Extent::OutputRows => self.sequences.iter().map(|sequence| sequence.output_rows().len()).sum(),
            Extent::Fixed | Extent::Context => value.shape.extents()[0],
        };
        rows * value.shape.stride()
    }

    /// Work that reads and writes each value of operand 0 once, with so many
    /// operations on it.
    fn each(&self, flops: u64) -> Work {
        let count = self.count(self.graph.value(self.node.inputs[0])) as u64;
        Work { flops: flops * count, bytes: 8 * count }
    }
}

/// Rows of a table.
struct Embed;

impl HostKernel for Embed {
    fn compute(&self, job: &Job<'_>, _: &mut Cache) -> Result<Vec<f32>> {
        let Inputs::Tokens(tokens) = job.inputs else {
            return Err(Error::new("a step brings embeddings; the program looks tokens up"));
        };
        let mut rows = Vec::new();
        for &token in tokens {
            rows.extend(job.weights.row(job.name(1), token as usize)?);
        }
        Ok(rows)
    }

    fn work(&self, job: &Job<'_>) -> Work {
        let rows = job.sequences.last().map_or(0, |sequence| u64::from(sequence.rows.end));
        Work { flops: 0, bytes: rows * job.stride(1) as u64 * 4 }
    }
}

/// the output rows.
struct Take;

impl HostKernel for Take {
    fn compute(&self, job: &Job<'_>, _: &mut Cache) -> Result<Vec<f32>> {
        let (x, stride) = (job.operand(0)?, job.stride(0));
        let rows = job.sequences.iter().flat_map(Sequence::output_rows);
        Ok(rows.flat_map(|row| &x[row * stride..(row + 1) * stride]).copied().collect())
    }

    fn work(&self, job: &Job<'_>) -> Work {
        let rows: usize = job.sequences.iter().map(|sequence| sequence.output_rows().len()).sum();
        Work { flops: 0, bytes: (rows * job.stride(0) * 8) as u64 }
    }
}

/// Root-mean-square normalisation, as [`Op::Norm`] defines it.
struct Norm {
    epsilon: f32,
}

impl HostKernel for Norm {
    fn compute(&self, job: &Job<'_>, _: &mut Cache) -> Result<Vec<f32>> {
        let weight = job.weights.row(job.name(1), 0)?;
        let rows = job.operand(0)?.chunks_exact(weight.len().max(1));
        let normed = rows.flat_map(|row| {
            let root = reference::root_mean_square(row, f64::from(self.epsilon));
            row.iter().zip(&weight).map(move |(&x, &w)| (f64::from(x) / root * f64::from(w)) as f32)
        });
        Ok(normed.collect())
    }

    fn work(&self, job: &Job<'_>) -> Work {
        job.each(4)
    }
}

/// Puts every row where its sequence's state has its position.
struct Write;

impl HostKernel for Write {
    fn compute(&self, job: &Job<'_>, state: &mut Cache) -> Result<Vec<f32>> {
        let rows = job.operand(0)?;
        let tensor = state.tensor_mut(&job.graph.value(job.node.output).name)?;
        for sequence in job.sequences {
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                tensor.write(sequence, position, &rows[row * tensor.inner..(row + 1) * tensor.inner]);
            }
        }
        Ok(Vec::new())
    }

    fn work(&self, job: &Job<'_>) -> Work {
        job.each(0)
    }
}

/// Every value times a constant.
struct Scale {
    factor: f32,
}

impl HostKernel for Scale {
    fn compute(&self, job: &Job<'_>, _: &mut Cache) -> Result<Vec<f32>> {
        Ok(job.operand(0)?.iter().map(|&x| x * self.factor).collect())
    }

    fn work(&self, job: &Job<'_>) -> Work {
        job.each(1)
    }
}

/// Bounds values smoothly.
struct Softcap {
    cap: f32,
}

impl HostKernel for Softcap {
    fn compute(&self, job: &Job<'_>, _: &mut Cache) -> Result<Vec<f32>> {
        let cap = f64::from(self.cap);
        Ok(job.operand(0)?.iter().map(|&x| (cap * (f64::from(x) / cap).tanh()) as f32).collect())
    }

    fn work(&self, job: &Job<'_>) -> Work {
        job.each(10)
    }
}
