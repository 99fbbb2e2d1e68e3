//! Weights that consist of parts of tensors, and their rows, read while a model runs.

use std::ops::Range;
use std::sync::Arc;

use girih_file::{Container, TensorInfo};
use girih_graph::backend::RowSource;
use girih_tensor::Result;

use crate::weight_bytes::past_end;

/// A range of each row of a tensor of the container.
#[derive(Clone, Debug)]
pub(crate) struct RowsPart {
    pub tensor: String,
    pub info: TensorInfo,
    /// The bytes of a whole row.
    pub row: usize,
    /// Those that belong to the part.
    pub range: Range<usize>,
}

/// Reads parts one after the other: whole rows at once, others row by row.
pub(crate) fn read_parts(
    container: &Container,
    parts: &[RowsPart],
    offset: u64,
    into: &mut [u8],
) -> Result<()> {
    let (mut skipped, mut rest) = (offset as usize, into);
    for RowsPart { info, row, range, .. } in parts {
        let rows = info.bytes as usize / row;
        let bytes = rows * range.len();
        while skipped < bytes && !rest.is_empty() {
            let is_whole = range.len() == *row;
            let (at, left) = if is_whole {
                (skipped, bytes - skipped)
            } else {
                let within = skipped % range.len();
                (skipped / range.len() * row + range.start + within, range.len() - within)
            };
            let length = left.min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            container.read(info, at as u64, now)?;
            (skipped, rest) = (skipped + length, later);
        }
        skipped -= bytes.min(skipped);
    }
    if rest.is_empty() { Ok(()) } else { Err(past_end()) }
}

/// The rows of a weight in the files of a model.
#[derive(Debug)]
pub(crate) struct FileRows {
    pub container: Arc<Container>,
    pub parts: Arc<Vec<RowsPart>>,
    /// The bytes of a row.
    pub row: usize,
}

impl RowSource for FileRows {
    fn read(&self, row: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        let start = row.checked_mul(self.row).and_then(|start| start.checked_add(offset));
        let start = start.filter(|_| offset.saturating_add(into.len()) <= self.row).ok_or_else(past_end)?;
        read_parts(&self.container, &self.parts, start as u64, into)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.container.check_contents()
    }
}
