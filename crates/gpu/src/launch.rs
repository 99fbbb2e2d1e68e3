//! Launches of kernels, as data: what they bind, their words, and their sizes in a step.

use girih_graph::Span;

use crate::driver::BufferPart;
use crate::kernel::GpuKernel;

/// What a launch binds.
#[derive(Clone, Debug)]
pub(crate) enum BufferRef {
    /// A buffer of scratch memory.
    Slot(usize),
    /// A part of the weights.
    Weight(BufferPart),
    /// A state value, by its number among those of the graph.
    State(usize),
    /// The table of the step.
    Step,
    /// What state could not hold.
    Faults,
    /// The largest numbers of result rows: of their runs (0), and of the rows (1).
    Picks(usize),
    /// Nothing is read.
    Unread,
    /// Nothing is written; a launch has several such bindings.
    Unwritten(usize),
}

/// What the rows of a launch count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Rows,
    OutputRows,
    Sequences,
}

/// The workgroups of a launch whose count is `n`. All but [`LaunchGrid::Matmul`] write a number to the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchGrid {
    /// `n · each` invocations in workgroups of `size`; the first word is their number.
    Invocations { each: u32, size: u32 },
    /// `n · each` workgroups; the first word is their number.
    Runs { each: u32 },
    /// `x` by `n / rows` by `z` workgroups; the first word is `n · each`.
    Tiles { x: u32, rows: u32, z: u32, each: u32 },
    /// `x` by `n` workgroups; the first word is `n`.
    Beside { x: u32 },
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct GpuLaunch {
    /// Its number in its list.
    pub id: usize,
    pub kernel: GpuKernel,
    pub binds: Vec<BufferRef>,
    /// The immediate data; the first word is set in each step.
    pub words: Vec<u32>,
    pub count: Count,
    pub grid: LaunchGrid,
}

/// Attention: chunks of rows, then their join; as many rows at once as the partial results of their chunks have room.
#[derive(Clone, Debug)]
pub(crate) struct AttendLaunch {
    pub chunks: GpuLaunch,
    pub join: GpuLaunch,
    /// Both for tiles of rows of a sequence, with the same bits; `None` if the kernel has no room for a head.
    pub tiles: Option<GpuLaunch>,
    pub span: Span,
    pub heads: u32,
    pub value_size: u32,
    /// Words of the buffer of partial results.
    pub room: u64,
}

/// What a node becomes.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    Launch(GpuLaunch),
    /// One of several launches with the same bits, by the number of rows: the first whose limit is not exceeded.
    ByRows(Vec<(u32, GpuLaunch)>),
    /// The same, but nothing up to this number of rows.
    Above(u32, Vec<(u32, GpuLaunch)>),
    Attend(Box<AttendLaunch>),
    /// The caller of the step computes experts.
    LeftExperts,
}

/// The most workgroups in one dimension.
const MOST_GROUPS: u32 = 65_535;

impl LaunchGrid {
    /// The first word and the workgroups for `n` rows; no workgroups if there is nothing to do.
    pub fn sizes(self, n: u32) -> (u32, [u32; 3]) {
        match self {
            LaunchGrid::Invocations { each, size } => {
                let all = n.saturating_mul(each);
                (all, spread(all.div_ceil(size)))
            }
            LaunchGrid::Runs { each } => {
                let all = n.saturating_mul(each);
                (all, spread(all))
            }
            LaunchGrid::Tiles { x, rows, z, each } => {
                let all = n.saturating_mul(each);
                (all, [x, all.div_ceil(rows), z])
            }
            LaunchGrid::Beside { x } => (n, [x, n, 1]),
        }
    }
}

/// Workgroups in two dimensions.
fn spread(groups: u32) -> [u32; 3] {
    let x = groups.min(MOST_GROUPS);
    [x, groups.div_ceil(x.max(1)), 1]
}

impl Instruction {
    /// The kernels of all launches, used or not.
    pub fn kernels(&self) -> Vec<GpuKernel> {
        match self {
            Instruction::Launch(launch) => vec![launch.kernel],
            Instruction::ByRows(variants) | Instruction::Above(_, variants) => {
                variants.iter().map(|(_, launch)| launch.kernel).collect()
            }
            Instruction::LeftExperts => Vec::new(),
            Instruction::Attend(attend) => [&attend.chunks, &attend.join]
                .into_iter()
                .chain(&attend.tiles)
                .map(|launch| launch.kernel)
                .collect(),
        }
    }

    /// All launches, used or not.
    pub fn launches_mut(&mut self) -> Vec<&mut GpuLaunch> {
        match self {
            Instruction::Launch(launch) => vec![launch],
            Instruction::ByRows(variants) | Instruction::Above(_, variants) => {
                variants.iter_mut().map(|(_, launch)| launch).collect()
            }
            Instruction::LeftExperts => Vec::new(),
            Instruction::Attend(attend) => {
                [&mut attend.chunks, &mut attend.join].into_iter().chain(attend.tiles.as_mut()).collect()
            }
        }
    }
}

impl GpuLaunch {
    /// A launch over elements, `each` of a row.
    pub fn elements(
        kernel: GpuKernel,
        binds: Vec<BufferRef>,
        words: Vec<u32>,
        count: Count,
        each: usize,
    ) -> GpuLaunch {
        GpuLaunch {
            id: 0,
            kernel,
            binds,
            words,
            count,
            grid: LaunchGrid::Invocations { each: each as u32, size: 256 },
        }
    }
}
