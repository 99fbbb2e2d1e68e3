//! The results of a step: rows on the device, which the host fetches when it is asked for them, and the largest number of each.

use std::ops::Range;
use std::sync::Arc;

use girih_graph::{Graph, HostRows, Output, Picks};
use girih_tensor::Result;

use crate::device::GpuDevice;
use crate::driver::GpuBuffer;
use crate::picks::{RowPick, has_picks};

/// Rows that the host has not fetched.
#[derive(Debug)]
pub(crate) struct DeviceRows {
    pub device: Arc<GpuDevice>,
    pub buffer: GpuBuffer,
    pub count: usize,
}

/// Where the results of the last step are. If the host asked for rows of a step, the next step copies its rows to the host at once.
#[derive(Debug)]
pub struct GpuOutput {
    rows: HostRows,
    width: usize,
    has_picks: bool,
    waiting: Option<DeviceRows>,
    picks: Vec<RowPick>,
    were_rows_asked: bool,
}

impl GpuOutput {
    /// Room for the results of a graph.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(graph: &Graph) -> Result<GpuOutput> {
        let width = graph.output().map_or(0, |id| graph.value(id).shape.stride());
        let has_picks = has_picks(graph);
        let rows = HostRows::new(graph)?;
        Ok(GpuOutput {
            rows,
            width,
            has_picks,
            waiting: None,
            picks: Vec::new(),
            were_rows_asked: !has_picks,
        })
    }

    /// Begins a step; says whether it brings the rows to the host.
    pub(crate) fn begin(&mut self) -> bool {
        self.waiting = None;
        self.picks.clear();
        std::mem::replace(&mut self.were_rows_asked, !self.has_picks)
    }

    /// Room for the rows of the step.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn brought(&mut self, count: usize) -> Result<&mut [f32]> {
        self.rows.begin(count)
    }

    /// Keeps rows on the device.
    pub(crate) fn keep(&mut self, rows: DeviceRows) {
        self.waiting = Some(rows);
    }

    /// Keeps the largest number of each row.
    pub(crate) fn keep_picks(&mut self, picks: Vec<RowPick>) {
        self.picks = picks;
    }
}

impl Output for GpuOutput {
    fn rows(&mut self, rows: Range<usize>) -> Result<&[f32]> {
        self.were_rows_asked = true;
        if let Some(DeviceRows { device, buffer, count }) = self.waiting.take() {
            let bytes = device.read(&buffer, 0, (count * self.width * size_of::<f32>()) as u64)?;
            let to = self.rows.begin(count)?;
            for (to, from) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*from);
            }
        }
        self.rows.rows(rows)
    }

    fn max_picks(&self) -> usize {
        usize::from(self.has_picks)
    }

    fn picks(&mut self, row: usize, top: usize, asked: &[u32]) -> Result<Picks> {
        match self.picks.get(row) {
            Some(pick) if top <= 1 && asked.is_empty() && !pick.has_nan => {
                let top = [(pick.id, pick.value)].into_iter().take(top).collect();
                Ok(Picks { top, asked: Vec::new(), has_nan: false })
            }
            _ => Ok(Picks::of(self.rows(row..row + 1)?, top, asked)),
        }
    }
}
