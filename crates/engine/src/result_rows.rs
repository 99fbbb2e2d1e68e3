//! The result rows of one request in a step.

use std::ops::Range;

use girih_graph::{Output, Picks};

use crate::Result;
use crate::cached_runner::failed;
use crate::sample::has_nan;

/// The result rows of one request: a part of the step's.
pub(crate) struct ResultRows<'a> {
    output: &'a mut dyn Output,
    rows: Range<usize>,
}

impl<'a> ResultRows<'a> {
    pub fn new(output: &'a mut dyn Output, rows: Range<usize>) -> ResultRows<'a> {
        ResultRows { output, rows }
    }

    /// The rows from `index` on.
    pub fn from(&mut self, index: usize) -> ResultRows<'_> {
        ResultRows { output: self.output, rows: self.rows.start + index..self.rows.end }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The maximum number of picks that are cheaper than a row.
    pub fn max_picks(&self) -> usize {
        self.output.max_picks()
    }

    /// The logits of row `index`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn row(&mut self, index: usize) -> Result<&[f32]> {
        let row = self.rows.start + index;
        self.output.rows(row..row + 1).map_err(failed)
    }

    /// Some logits of row `index`, as [`Output::picks`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn picks(&mut self, index: usize, top: usize, asked: &[u32]) -> Result<Picks> {
        self.output.picks(self.rows.start + index, top, asked).map_err(failed)
    }

    /// Whether one of these rows has NaN, or cannot be read, so that its state is not to be
    /// trusted.
    pub fn have_nan(&mut self, mut indexes: Range<usize>) -> bool {
        let has_picks = self.max_picks() > 0;
        indexes.any(|index| match has_picks {
            true => self.picks(index, 0, &[]).map_or(true, |picks| picks.has_nan),
            false => self.row(index).map_or(true, has_nan),
        })
    }
}
