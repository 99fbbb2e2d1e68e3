//! The host fallback: nodes that the host computes between two programs of the
//! array. Each kind of work is a [`HostKernel`]; all of them use the same
//! state.

mod attend;
mod job;
mod state;

use girih_graph::Op;
use girih_graph::backend::{Input, Sequence};
use girih_tensor::{Error, Result, reference};

pub use job::{HostCost, HostJob, HostKernel, WeightRows};
pub use state::NpuState;

/// The kernel of an op, if the host supports it.
pub fn kernel(op: Op) -> Option<Box<dyn HostKernel>> {
    Some(match op {
        Op::Embed => Box::new(HostEmbed),
        Op::Gather => Box::new(HostGather),
        Op::Norm { epsilon } => Box::new(HostNorm { epsilon }),
        Op::Write => Box::new(HostWrite),
        Op::Scale { factor } => Box::new(HostScale { factor }),
        Op::Softcap { cap } => Box::new(HostSoftcap { cap }),
        Op::Attend { scale, span, softcap } => Box::new(attend::HostAttend { scale, span, softcap }),
        _ => return None,
    })
}

/// Gathers rows of the embedding table.
struct HostEmbed;

impl HostKernel for HostEmbed {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let index = job.graph.inputs().position(|(id, _)| id == job.node.inputs[0]);
        let Some(Input::Ids(ids)) = index.and_then(|index| job.inputs.get(index)) else {
            return Err(Error::new("the step brings no ids for an embedding"));
        };
        let mut rows = Vec::new();
        for &token in *ids {
            rows.extend(job.weights.row(job.name(1), token as usize)?);
        }
        Ok(rows)
    }

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        let rows = job.sequences.last().map_or(0, |sequence| u64::from(sequence.rows.end));
        HostCost { flops: 0, bytes: rows * job.stride(1) as u64 * 4 }
    }
}

/// Gathers the output rows.
struct HostGather;

impl HostKernel for HostGather {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let (x, stride) = (job.operand(0)?, job.stride(0));
        let rows = job.sequences.iter().flat_map(Sequence::output_rows);
        Ok(rows.flat_map(|row| &x[row * stride..(row + 1) * stride]).copied().collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        let rows: usize = job.sequences.iter().map(|sequence| sequence.output_rows().len()).sum();
        HostCost { flops: 0, bytes: (rows * job.stride(0) * 8) as u64 }
    }
}

/// Root-mean-square norm, as defined by [`Op::Norm`].
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

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        job.each(4)
    }
}

/// Writes every row at its position in the state of its sequence.
struct HostWrite;

impl HostKernel for HostWrite {
    fn compute(&self, job: &HostJob<'_>, state: &mut NpuState) -> Result<Vec<f32>> {
        let rows = job.operand(0)?;
        let tensor = state.tensor_mut(&job.graph.value(job.node.output).name)?;
        for sequence in job.sequences {
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                tensor.write(sequence, position, &rows[row * tensor.inner..(row + 1) * tensor.inner]);
            }
        }
        Ok(Vec::new())
    }

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        job.each(0)
    }
}

/// Multiplies every value by a constant.
struct HostScale {
    factor: f32,
}

impl HostKernel for HostScale {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        Ok(job.operand(0)?.iter().map(|&x| x * self.factor).collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        job.each(1)
    }
}

/// Limits values smoothly to ±`cap`.
struct HostSoftcap {
    cap: f32,
}

impl HostKernel for HostSoftcap {
    fn compute(&self, job: &HostJob<'_>, _: &mut NpuState) -> Result<Vec<f32>> {
        let cap = f64::from(self.cap);
        Ok(job.operand(0)?.iter().map(|&x| (cap * (f64::from(x) / cap).tanh()) as f32).collect())
    }

    fn work(&self, job: &HostJob<'_>) -> HostCost {
        job.each(10)
    }
}
