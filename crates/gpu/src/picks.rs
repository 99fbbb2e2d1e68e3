//! The largest number of each result row: the launches that find it, and what they write.

use girih_graph::{Graph, OutputKind};

use crate::kernel::GpuKernel;
use crate::launch::{BufferRef, Count, GpuLaunch, LaunchGrid};
use crate::slots::Slots;

/// The numbers of a run of `pick.wgsl`.
const PICK_RUN: usize = 4096;

/// Bytes that `pick.wgsl` writes for a run, and for a row.
pub(crate) const PICK_BYTES: u64 = 12;

/// The largest number of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPick {
    pub id: u32,
    pub value: f32,
    /// Whether some number of the row is NaN; then the others mean nothing.
    pub has_nan: bool,
}

impl RowPick {
    /// The words of a row.
    pub fn of([value, id, has_nan]: [u32; 3]) -> RowPick {
        RowPick { id, value: f32::from_bits(value), has_nan: has_nan != 0 }
    }
}

/// Whether steps of a graph find the largest number of each result row.
pub(crate) fn has_picks(graph: &Graph) -> bool {
    graph.key.output == OutputKind::Logits
}

/// The two launches that find the largest number of each result row; their numbers begin with `id`.
pub(crate) fn pick_launches(graph: &Graph, slots: &Slots, id: usize) -> Option<[GpuLaunch; 2]> {
    let slot = graph.output().filter(|_| has_picks(graph)).and_then(|result| slots.value(result))?;
    let [width, runs] =
        [result_width(graph), result_width(graph).div_ceil(PICK_RUN)].map(|count| count as u32);
    Some([0, 1].map(|second| GpuLaunch {
        id: id + second,
        kernel: GpuKernel::Pick,
        binds: vec![BufferRef::Slot(slot), BufferRef::Picks(0), BufferRef::Picks(1)],
        words: vec![0, second as u32, width, runs],
        count: Count::OutputRows,
        grid: LaunchGrid::Beside { x: if second == 0 { runs } else { 1 } },
    }))
}

/// The numbers of a result row.
fn result_width(graph: &Graph) -> usize {
    graph.output().map_or(0, |id| graph.value(id).shape.stride())
}

/// The bytes of the buffers of the largest numbers: those of runs, and those of rows.
pub(crate) fn pick_buffers(graph: &Graph) -> [u64; 2] {
    let rows = if has_picks(graph) { u64::from(graph.key.output_rows) } else { 0 };
    [result_width(graph).div_ceil(PICK_RUN) as u64, 1].map(|runs| rows.saturating_mul(runs * PICK_BYTES))
}
