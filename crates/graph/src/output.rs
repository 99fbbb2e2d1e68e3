//! The results of a step, where they lie: in the host's memory, or on a device that hands out
//! rows or only the largest values of a row.

use std::cmp::Ordering;
use std::ops::Range;

use girih_tensor::{Error, ErrorKind, Result};

use crate::graph::{Graph, OutputKind};

/// The results of the last step.
pub trait Output: Send {
    /// Waits until the results are there.
    ///
    /// # Errors
    /// When the device fails; then the state that the step wrote is undefined.
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns result rows, one after another; the rows of a step are numbered over all its
    /// sequences.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the last step has fewer rows.
    fn rows(&mut self, rows: Range<usize>) -> Result<&[f32]>;

    /// The maximum of `top` for which [`Output::picks`] is cheaper than a row; 0 if it never is.
    fn max_picks(&self) -> usize {
        0
    }

    /// Returns the `top` largest values of a row, and those of the ids `asked`. The result
    /// equals that of [`Picks::of`] to the bit.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the last step has fewer rows, or an id is outside the row.
    fn picks(&mut self, row: usize, top: usize, asked: &[u32]) -> Result<Picks> {
        Ok(Picks::of(self.rows(row..row + 1)?, top, asked))
    }
}

/// Some values of a row of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picks {
    /// The largest values with their ids, in descending order; equal values by ascending id.
    pub top: Vec<(u32, f32)>,
    /// The values that were asked for, in the order of the question.
    pub asked: Vec<f32>,
    /// Whether a value of the row is NaN; then the order of `top` means nothing.
    pub has_nan: bool,
}

impl Picks {
    /// The definition of picks.
    ///
    /// # Panics
    /// When an id is outside the row.
    pub fn of(row: &[f32], top: usize, asked: &[u32]) -> Picks {
        let value = |id: u32| row[id as usize];
        let rank =
            |a: &u32, b: &u32| value(*b).partial_cmp(&value(*a)).unwrap_or(Ordering::Equal).then(a.cmp(b));
        let has_nan = row.iter().any(|value| value.is_nan());
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        let top = top.min(ids.len());
        if !has_nan && top > 0 {
            if top < ids.len() {
                ids.select_nth_unstable_by(top, rank);
            }
            ids[..top].sort_unstable_by(rank);
        }
        ids.truncate(top);
        Picks {
            top: ids.into_iter().map(|id| (id, value(id))).collect(),
            asked: asked.iter().map(|id| value(*id)).collect(),
            has_nan,
        }
    }
}

/// Result rows in the host's memory.
#[derive(Debug)]
pub struct HostRows {
    width: usize,
    rows: usize,
    /// Room for the rows of the largest step so far.
    values: Vec<f32>,
}

impl HostRows {
    /// Room for the results of a graph: at first for one row per sequence, more once a step
    /// has more.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(graph: &Graph) -> Result<HostRows> {
        let width = graph.output().map_or(0, |output| graph.value(output).shape.stride());
        let mut rows = HostRows::of_width(width);
        let key = graph.key;
        let first = match key.output {
            OutputKind::Logits | OutputKind::Hidden => key.sequences.min(key.output_rows),
            OutputKind::Pooled => key.sequences,
        };
        rows.reserve(first as usize)?;
        Ok(rows)
    }

    /// Results of `width` values in a row; room is made when a step begins.
    pub fn of_width(width: usize) -> HostRows {
        HostRows { width, rows: 0, values: Vec::new() }
    }

    /// The bytes of the results of the graph's largest step.
    pub fn plan(graph: &Graph) -> u64 {
        let Some(output) = graph.output() else { return 0 };
        let rows = match graph.key.output {
            OutputKind::Logits | OutputKind::Hidden => graph.key.output_rows,
            OutputKind::Pooled => graph.key.sequences,
        };
        let width = graph.value(output).shape.stride() as u64;
        width.saturating_mul(u64::from(rows)).saturating_mul(size_of::<f32>() as u64)
    }

    /// Begins a step: returns its result rows, whose values are undefined.
    ///
    /// # Errors
    /// When memory is short.
    pub fn begin(&mut self, rows: usize) -> Result<&mut [f32]> {
        self.reserve(rows)?;
        self.rows = rows;
        Ok(&mut self.values[..rows * self.width])
    }

    fn reserve(&mut self, rows: usize) -> Result<()> {
        let short = || {
            let sentence = format!("not enough memory for {rows} result rows of {} values", self.width);
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        };
        let need = rows.checked_mul(self.width).ok_or_else(short)?;
        let more = need.saturating_sub(self.values.len());
        self.values.try_reserve_exact(more).map_err(|_| short())?;
        self.values.resize(need.max(self.values.len()), 0.0);
        Ok(())
    }
}

impl Output for HostRows {
    fn rows(&mut self, rows: Range<usize>) -> Result<&[f32]> {
        assert!(rows.end <= self.rows, "the last step has {} rows, not {}", self.rows, rows.end);
        Ok(&self.values[rows.start * self.width..rows.end * self.width])
    }
}
