//! What stays on the host: the work between two programs of the array. Each
//! kind of it is a [`HostKernel`]; all of them see one state.

mod attend;
mod state;

use girih_graph::backend::{Inputs, Lane};
use girih_graph::{Extent, Graph, Node, Op, Value};
use girih_tensor::{Error, Result, reference};

pub use state::NpuState;

/// One kind of work of the host.
pub trait HostKernel {
    /// Computes the result for the rows of the step; nothing if what it
    /// writes is state.
    ///
    /// # Errors
    /// When the operands are not those of its op.
    fn compute(&self, job: &HostJob<'_>, state: &mut NpuState) -> Result<Vec<f32>>;

    /// Floating-point operations and bytes of memory that it takes, for the
    /// time of the host.
    fn work(&self, job: &HostJob<'_>) -> HostWork;
}

/// What a piece of host work costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWork {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// One node's operands in one step.
pub struct HostJob<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// The operands that are values of the step, rows that count one after
    /// another; empty for weights and state.
    pub operands: &'a [Vec<f32>],
    /// Where weights come from.
    pub weights: &'a dyn WeightRows,
    /// What went into the step.
    pub inputs: Inputs<'a>,
    /// The step's lanes.
    pub lanes: &'a [Lane<'a>],
}

/// Weights, row by row.
pub trait WeightRows {
    /// Row `row` of the weight of this name.
    ///
    /// # Errors
    /// When there is no such weight or row.
    fn row(&self, name: &str, row: usize) -> Result<Vec<f32>>;
}

/// The kernel of an op, if the host has one.
pub fn kernel(op: Op) -> Option<Box<dyn HostKernel>> {
    Some(match op {
        Op::Embed => Box::new(HostEmbed),
        Op::Take => Box::new(HostGather),
        Op::Norm { epsilon } => Box::new(HostNorm { epsilon }),
        Op::Write => Box::new(HostWrite),
        Op::Scale { factor } => Box::new(HostScale { factor }),
        Op::Softcap { cap } => Box::new(HostSoftcap { cap }),
        Op::Attend { scale, span, softcap } => Box::new(attend::HostAttend { scale, span, softcap }),
        _ => return None,
    })
}

impl HostJob<'_> {
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
            Extent::Rows => self.lanes.last().map_or(0, |lane| lane.rows.end as usize),
            Extent::Wanted => self.lanes.iter().map(|lane| lane.wanted().len()).sum(),
            Extent::Fixed | Extent::Context => value.shape.extents()[0],
        };
        rows * value.shape.stride()
    }

    /// Work that reads and writes each value of operand 0 once, with so many
    /// operations on it.
    fn each(&self, flops: u64) -> HostWork {
        let count = self.count(self.graph.value(self.node.inputs[0])) as u64;
        HostWork { flops: flops * count, bytes: 8 * count }
    }
}

/// Rows of a table.
struct HostEmbed;

impl HostKernel for HostEmbed {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let Inputs::Tokens(tokens) = job.inputs else {
            return Err(Error::new("a step brings embeddings; the program looks tokens up"));
        };
        let mut rows = Vec::new();
        for &token in tokens {
            rows.extend(job.weights.row(job.name(1), token as usize)?);
        }
        Ok(rows)
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        let rows = job.lanes.last().map_or(0, |lane| u64::from(lane.rows.end));
        HostWork { flops: 0, bytes: rows * job.stride(1) as u64 * 4 }
    }
}

/// The rows whose results are wanted.
struct HostGather;

impl HostKernel for HostGather {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let (x, stride) = (job.operand(0)?, job.stride(0));
        let rows = job.lanes.iter().flat_map(Lane::wanted);
        Ok(rows.flat_map(|row| &x[row * stride..(row + 1) * stride]).copied().collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        let rows: usize = job.lanes.iter().map(|lane| lane.wanted().len()).sum();
        HostWork { flops: 0, bytes: (rows * job.stride(0) * 8) as u64 }
    }
}

/// Root-mean-square normalisation, as [`Op::Norm`] defines it.
struct HostNorm {
    epsilon: f32,
}

impl HostKernel for HostNorm {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let weight = job.weights.row(job.name(1), 0)?;
        let rows = job.operand(0)?.chunks_exact(weight.len().max(1));
        let normed = rows.flat_map(|row| {
            let root = reference::root_mean_square(row, f64::from(self.epsilon));
            row.iter().zip(&weight).map(move |(&x, &w)| (f64::from(x) / root * f64::from(w)) as f32)
        });
        Ok(normed.collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        job.each(4)
    }
}

/// Puts every row where its lane's state has its position.
struct HostWrite;

impl HostKernel for HostWrite {
    fn compute(&self, job: &HostJob<'_>, state: &mut NpuState) -> Result<Vec<f32>> {
        let rows = job.operand(0)?;
        let tensor = state.tensor_mut(&job.graph.value(job.node.output).name)?;
        for lane in job.lanes {
            for (row, position) in lane.rows.indexes().zip(lane.position as usize..) {
                tensor.write(lane, position, &rows[row * tensor.inner..(row + 1) * tensor.inner]);
            }
        }
        Ok(Vec::new())
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        job.each(0)
    }
}

/// Every value times a constant.
struct HostScale {
    factor: f32,
}

impl HostKernel for HostScale {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        Ok(job.operand(0)?.iter().map(|&x| x * self.factor).collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        job.each(1)
    }
}

/// Bounds values smoothly.
struct HostSoftcap {
    cap: f32,
}

impl HostKernel for HostSoftcap {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let cap = f64::from(self.cap);
        Ok(job.operand(0)?.iter().map(|&x| (cap * (f64::from(x) / cap).tanh()) as f32).collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostWork {
        job.each(10)
    }
}
