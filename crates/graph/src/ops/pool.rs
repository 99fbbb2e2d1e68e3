//! One row for each sequence.

use girih_tensor::Shape;

use crate::constant::Pooling;
use crate::sequence::Sequence;
use crate::value::{Extent, Value};
use crate::work::{NodeWork, Reads, WorkStep};

pub(super) fn fits(x: &Value, y: &Value) -> bool {
    x.rank() == 2 && y.outermost == Extent::Sequences && y.inner() == x.inner()
}

/// A row has `stride` numbers.
pub(crate) fn define(x: &[f32], stride: usize, how: Pooling, sequences: &[Sequence<'_>]) -> Vec<f32> {
    let row = |index: usize| x[index * stride..(index + 1) * stride].iter().copied();
    let pooled = sequences.iter().flat_map(|sequence| {
        let rows = sequence.rows.indexes();
        match how {
            Pooling::First => row(rows.start).collect::<Vec<f32>>(),
            Pooling::Last => row(rows.end - 1).collect(),
            Pooling::Mean => {
                let count = rows.len() as f64;
                let sum =
                    |column: usize| rows.clone().map(|row| f64::from(x[row * stride + column])).sum::<f64>();
                (0..stride).map(|column| (sum(column) / count) as f32).collect()
            }
        }
    });
    pooled.collect()
}

pub(super) fn work(how: Pooling, x: Shape, step: WorkStep<'_>) -> NodeWork {
    match how {
        Pooling::First | Pooling::Last => NodeWork::reading([Reads::Rows(step.rows)]),
        Pooling::Mean => NodeWork::each(1, step.all_rows() * x.stride() as u64),
    }
}
