//! Attention on the host: one softmax over all positions that a row attends to,
//! position by position, so that it does not depend on the chunks of a prompt.

use girih_graph::Span;
use girih_graph::backend::Sequence;
use girih_tensor::{Result, reference};

use super::job::{HostCost, HostJob, HostKernel};
use super::state::{NpuState, StateTensor};

/// The constants of [`Op::Attend`](girih_graph::Op::Attend).
#[derive(Clone, Copy)]
pub(super) struct HostAttend {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

impl HostKernel for HostAttend {
    fn compute(&self, job: &HostJob<'_>, state: &mut NpuState) -> Result<Vec<f32>> {
        let q = job.operand(0)?;
        let shape = &job.graph.value(job.node.inputs[0]).shape;
        let (heads, size) = (shape.extents()[1], shape.columns());
        let keys = state.tensor(job.name(1))?;
        let values = state.tensor(job.name(2))?;
        let mut out = Vec::new();
        for sequence in job.sequences {
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                let q = &q[row * heads * size..(row + 1) * heads * size];
                self.row(q, size, keys, values, sequence, position, &mut out);
            }
        }
        Ok(out)
    }

    /// Counts scores and weighted sum, two operations per element each, over
    /// the positions that each row attends to; keys and values are read once
    /// for all heads.
    fn work(&self, job: &HostJob<'_>) -> HostCost {
        let inner = job.graph.value(job.node.inputs[1]).shape.stride() as u64;
        let width = job.stride(0) as u64;
        let mut work = HostCost::default();
        for sequence in job.sequences {
            for (_, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                let seen = sequence.sees(self.span, position).len() as u64;
                work.flops += 4 * seen * width;
                work.bytes += 4 * seen * inner;
            }
        }
        work
    }
}

impl HostAttend {
    /// Computes attention for all heads of one row.
    #[allow(clippy::too_many_arguments)] // a row, its two states and its position
    fn row(
        &self,
        q: &[f32],
        size: usize,
        keys: &StateTensor,
        values: &StateTensor,
        sequence: &Sequence<'_>,
        position: usize,
        out: &mut Vec<f32>,
    ) {
        let seen = sequence.sees(self.span, position);
        let count = seen.len();
        let (k, v) = (keys.read(sequence, seen.clone()), values.read(sequence, seen));
        let heads = q.len() / size;
        let shared = heads * size / keys.inner;
        let value_size = values.inner * size / keys.inner;
        for (head, q) in q.chunks_exact(size).enumerate() {
            let (key, value) = (head / shared * size, head / shared * value_size);
            let score = |at: usize| {
                let row = &k[at * keys.inner + key..][..size];
                let score = f64::from(self.scale) * reference::dot(q, row).sum;
                self.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let mut weights: Vec<f64> = (0..count).map(score).collect();
            reference::softmax(&mut weights);
            let mut sums = vec![0.0f64; value_size];
            for (at, weight) in weights.iter().enumerate() {
                let row = &v[at * values.inner + value..][..value_size];
                sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += weight * f64::from(v));
            }
            out.extend(sums.into_iter().map(|sum| sum as f32));
        }
    }
}
