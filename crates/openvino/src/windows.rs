//! Keys and values: blocks in the host's memory, and windows of them in the layout of the model.
//!
//! A window has the rows of earlier steps that the sequences of a call attend to, `[lanes, heads, positions, size]` in `f32`.
//! Block `b` of a sequence lies at block `b % count` of the window, so a sliding window never moves. Each lane remembers which
//! contents it holds; others are copied before a call.

use std::collections::HashMap;
use std::ops::Range;

use girih_graph::backend::{BLOCK_POSITIONS, Sequence};
use girih_graph::state::PositionMajor;
use girih_graph::{Graph, GroupId, Role, StateKind, ValueId};
use girih_tensor::{Error, ErrorKind, Result};

use crate::lower::{MaskRule, MaskedKeys};
use crate::step_shape::{StepAxis, StepShape, sliding_blocks};

/// The state of all sequences.
#[derive(Debug)]
pub(crate) struct WindowState {
    pub(crate) blocks: PositionMajor,
    /// Windows for calls of one lane, and for calls of several.
    windows: [HashMap<ValueId, Window>; 2],
}

/// The contents of a block of a window: the stamp of the state's block, and the number of rows that count. All others are 0.
type Held = Option<(u64, usize)>;

/// Rows of a state value, as the model reads them.
#[derive(Debug, Default)]
struct Window {
    values: Vec<f32>,
    /// Blocks of each lane.
    held: Vec<Held>,
    shape: WindowShape,
}

/// The extents of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowShape {
    pub lanes: usize,
    pub heads: usize,
    /// Blocks of positions.
    pub blocks: usize,
    pub size: usize,
}

impl WindowShape {
    /// The numbers of one lane.
    fn lane(self) -> usize {
        self.heads * self.blocks * BLOCK_POSITIONS * self.size
    }

    /// The extents of the first lanes.
    pub fn extents(self, lanes: usize) -> Vec<usize> {
        vec![lanes, self.heads, self.blocks * BLOCK_POSITIONS, self.size]
    }
}

/// The number of blocks of a window of an elastic model in which rows from `position` on see what is before them. It grows in steps of an
/// eighth, so that rows are seldom copied, and follows from the position alone, so that equal calls have equal bytes.
pub(crate) fn window_blocks(kind: StateKind, position: usize) -> usize {
    let used = position.div_ceil(BLOCK_POSITIONS).max(1);
    let step = (used.next_power_of_two() / 8).max(1);
    sliding_blocks(kind, used.next_multiple_of(step))
}

/// A step's part that a window serves.
#[derive(Clone, Copy)]
pub(crate) struct WindowCall<'a> {
    pub graph: &'a Graph,
    pub lanes: &'a [&'a Sequence<'a>],
    pub shape: StepShape,
}

impl WindowCall<'_> {
    /// The kind of a group of state.
    fn kind(self, group: GroupId) -> StateKind {
        self.graph.groups[group.0 as usize].kind
    }

    /// The blocks of the windows of a group in this call.
    pub fn blocks(self, group: GroupId) -> usize {
        let kind = self.kind(group);
        match self.shape {
            StepShape::Any => {
                let each = self.lanes.iter().map(|lane| window_blocks(kind, lane.position as usize));
                each.max().unwrap_or(1)
            }
            StepShape::Fixed(step) => step.window_blocks(kind),
        }
    }

    /// The mask of a rule, `[n, 1, r, positions]`: 0 where a row attends, else −∞. Rows that fill up a step attend to
    /// themselves, so that their softmax has a number.
    pub fn mask(self, rule: MaskRule) -> (Vec<f32>, [usize; 4]) {
        let count = self.lanes.first().map_or(0, |lane| lane.rows.indexes().len());
        let rows = self.shape.extent(StepAxis::Rows).unwrap_or(count);
        let width = match rule.of {
            MaskedKeys::Window(group) => self.blocks(group) * BLOCK_POSITIONS,
            MaskedKeys::Step => rows,
        };
        let mut mask = vec![f32::NEG_INFINITY; self.lanes.len() * rows * width];
        for (lane, of_lane) in self.lanes.iter().zip(mask.chunks_exact_mut((rows * width).max(1))) {
            let end = lane.position as usize;
            for (position, row) in (end..end + count).zip(of_lane.chunks_exact_mut(width)) {
                let seen = lane.sees(rule.span, position);
                match rule.of {
                    MaskedKeys::Window(group) => self.open(group, width / BLOCK_POSITIONS, end, seen, row),
                    MaskedKeys::Step => row[seen.start.max(end) - end..seen.end.max(end) - end].fill(0.0),
                }
            }
            if rule.of == MaskedKeys::Step {
                (count..rows).for_each(|row| of_lane[row * width + row] = 0.0);
            }
        }
        (mask, [self.lanes.len(), 1, rows, width])
    }

    /// Opens the positions before `end` that a row sees.
    fn open(self, group: GroupId, blocks: usize, end: usize, seen: Range<usize>, window: &mut [f32]) {
        for (at, part) in window.chunks_exact_mut(BLOCK_POSITIONS).enumerate() {
            if let Some(block) = block_at(end, self.kind(group), blocks, at) {
                let first = block * BLOCK_POSITIONS;
                let within = |position: usize| position.clamp(first, first + BLOCK_POSITIONS) - first;
                let (from, to) = (within(seen.start), within(seen.end.min(end)));
                part[from..to.max(from)].fill(0.0);
            }
        }
    }
}

/// The block of a sequence that lies at block `at` of a window of `blocks`, before the position `end`: one of those from the
/// first that `end` reads on.
fn block_at(end: usize, kind: StateKind, blocks: usize, at: usize) -> Option<usize> {
    let (first, last) = (kind.first_block(end), end.div_ceil(BLOCK_POSITIONS));
    let ahead = (at + blocks - first % blocks) % blocks;
    let block = first + ahead;
    (block < last).then_some(block)
}

impl WindowState {
    /// The bytes of all state: blocks, and windows as large as they may become.
    pub(crate) fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let sequences = u64::from(graph.key.sequences);
        let lanes = if sequences > 1 { sequences + 1 } else { 1 };
        let windows = graph.values.iter().filter_map(|value| match value.role {
            Role::State(group) => {
                let kind = graph.groups[group.0 as usize].kind;
                if kind == StateKind::Carried {
                    return None;
                }
                let positions = (window_blocks(kind, graph.key.context as usize) * BLOCK_POSITIONS) as u64;
                Some(positions.saturating_mul(value.row_len() as u64).saturating_mul(4 * lanes))
            }
            Role::Input | Role::Weight | Role::Scratch | Role::Output => None,
        });
        windows.fold(PositionMajor::plan(graph, blocks), u64::saturating_add)
    }

    /// Zeroed state.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(graph: &Graph, blocks: &[u32]) -> Result<WindowState> {
        Ok(WindowState { blocks: PositionMajor::new(graph, blocks)?, windows: Default::default() })
    }

    /// Brings the windows of a state value up to date for a call; returns their extents.
    pub(crate) fn prepare(&mut self, id: ValueId, call: WindowCall<'_>) -> Result<WindowShape> {
        let value = call.graph.value(id);
        let Role::State(group) = value.role else {
            return Err(Error::new(format!("'{}' is no state; this is a bug in girih", value.name)));
        };
        let extents = value.shape.extents();
        let several = usize::from(call.lanes.len() > 1);
        let lanes = if several == 1 { call.graph.key.sequences as usize } else { 1 };
        let shape = WindowShape {
            lanes: lanes.max(call.lanes.len()),
            heads: extents[1],
            blocks: call.blocks(group),
            size: extents[2],
        };
        let WindowState { blocks, windows } = self;
        let window = windows[several].entry(id).or_default();
        window.resize(shape, &value.name)?;
        for lane in 0..call.lanes.len() {
            window.refresh(&value.name, group, call, lane, blocks)?;
        }
        Ok(shape)
    }

    /// The numbers of the first lanes of a window.
    pub(crate) fn window(&self, id: ValueId, lanes: usize) -> Result<&[f32]> {
        let window = self.windows[usize::from(lanes > 1)].get(&id);
        let window = window.ok_or_else(|| Error::new("a window is not prepared; this is a bug in girih"))?;
        Ok(&window.values[..lanes * window.shape.lane()])
    }

    /// Stores the new rows of a call, `[n, heads, r, size]`; those that fill up the step are left out.
    pub(crate) fn write(&mut self, id: ValueId, call: WindowCall<'_>, rows: &[f32]) -> Result<()> {
        let value = call.graph.value(id);
        let extents = value.shape.extents();
        let [heads, size] = [extents[1], extents[2]];
        let filled = rows.len() / call.lanes.len().max(1);
        let mut rest = rows;
        for (lane, sequence) in call.lanes.iter().enumerate() {
            let count = sequence.rows.indexes().len();
            let (own, others) = rest.split_at(filled);
            let mut by_row = vec![0.0; count * heads * size];
            for (head, numbers) in own.chunks_exact((filled / heads.max(1)).max(1)).enumerate() {
                for (row, numbers) in numbers.chunks_exact(size.max(1)).take(count).enumerate() {
                    by_row[(row * heads + head) * size..][..size].copy_from_slice(numbers);
                }
            }
            let before = self.stamp(id, call, lane)?;
            self.blocks.write(&value.name, sequence, &by_row)?;
            self.follow(id, call, lane, before)?;
            rest = others;
        }
        Ok(())
    }

    /// What each lane carries, lane after lane.
    pub(crate) fn carried(&self, id: ValueId, call: WindowCall<'_>) -> Result<Vec<f32>> {
        let name = &call.graph.value(id).name;
        let mut all = Vec::new();
        for sequence in call.lanes {
            all.extend(self.blocks.carried(name, sequence)?);
        }
        Ok(all)
    }

    /// Stores what each lane carries after the rows of a call, and at the end of each block. `rows` has those that it carried
    /// before, then those of the call.
    pub(crate) fn carry(&mut self, id: ValueId, call: WindowCall<'_>, rows: &[f32]) -> Result<()> {
        let value = call.graph.value(id);
        let (kept, width) = (value.shape.elements(), value.shape.columns());
        let mut rest = rows;
        for sequence in call.lanes {
            let count = sequence.rows.indexes().len();
            let (own, others) = rest.split_at(kept + count * width);
            for (done, position) in (1..=count).zip(sequence.position as usize..) {
                if (position + 1).is_multiple_of(BLOCK_POSITIONS) || done == count {
                    self.blocks.carry(&value.name, sequence, position, &own[done * width..][..kept])?;
                }
            }
            rest = others;
        }
        Ok(())
    }

    /// The stamp of the block that has the first new row of a lane.
    fn stamp(&self, id: ValueId, call: WindowCall<'_>, lane: usize) -> Result<u64> {
        let sequence = call.lanes[lane];
        self.blocks.stamp(&call.graph.value(id).name, sequence, sequence.position as usize / BLOCK_POSITIONS)
    }

    /// Copies a single new row to the window that held all rows before it, so that the next step need not copy its block.
    fn follow(&mut self, id: ValueId, call: WindowCall<'_>, lane: usize, before: u64) -> Result<()> {
        let sequence = call.lanes[lane];
        let position = sequence.position as usize;
        let (name, after) = (&call.graph.value(id).name, self.stamp(id, call, lane)?);
        let several = usize::from(call.lanes.len() > 1);
        let Some(window) = self.windows[several].get_mut(&id) else { return Ok(()) };
        let (at, within) = (position / BLOCK_POSITIONS % window.shape.blocks, position % BLOCK_POSITIONS);
        let held = &mut window.held[lane * window.shape.blocks + at];
        let holds_rows_before = *held == Some((before, within)) && within > 0;
        if sequence.rows.indexes().len() != 1 || !holds_rows_before {
            return Ok(());
        }
        *held = Some((after, within + 1));
        let row = self.blocks.rows(name, sequence, position..position + 1)?;
        window.put(lane, at, within, &row);
        Ok(())
    }
}

impl Window {
    /// Makes room; other extents make all contents stale.
    fn resize(&mut self, shape: WindowShape, name: &str) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        let short = || {
            let bytes = shape.lanes.saturating_mul(shape.lane()).saturating_mul(4);
            let sentence = format!("cannot allocate {bytes} bytes for the window of '{name}'");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        };
        let count = shape.lanes.checked_mul(shape.lane()).ok_or_else(short)?;
        self.values.clear();
        self.values.try_reserve_exact(count).map_err(|_| short())?;
        self.values.resize(count, 0.0);
        self.held.clear();
        self.held.resize(shape.lanes * shape.blocks, None);
        self.shape = shape;
        Ok(())
    }

    /// Copies the blocks that a lane reads and the window does not hold.
    fn refresh(
        &mut self,
        name: &str,
        group: GroupId,
        call: WindowCall<'_>,
        lane: usize,
        blocks: &PositionMajor,
    ) -> Result<()> {
        let sequence = call.lanes[lane];
        let (end, kind) = (sequence.position as usize, call.kind(group));
        for at in 0..self.shape.blocks {
            let block = block_at(end, kind, self.shape.blocks, at);
            let required = match block {
                None => None,
                Some(block) => {
                    let rows = (end - block * BLOCK_POSITIONS).min(BLOCK_POSITIONS);
                    Some((blocks.stamp(name, sequence, block)?, rows))
                }
            };
            let slot = lane * self.shape.blocks + at;
            if self.held[slot] == required {
                continue;
            }
            self.clear(lane, at);
            if let (Some(block), Some((_, rows))) = (block, required) {
                let first = block * BLOCK_POSITIONS;
                let numbers = blocks.rows(name, sequence, first..first + rows)?;
                self.put(lane, at, 0, &numbers);
            }
            self.held[slot] = required;
        }
        Ok(())
    }

    /// The first number of a head's row in a block.
    fn place(&self, lane: usize, head: usize, at: usize, within: usize) -> usize {
        let WindowShape { heads, blocks, size, .. } = self.shape;
        (((lane * heads + head) * blocks + at) * BLOCK_POSITIONS + within) * size
    }

    /// Fills a block with zeros: what is masked must still be a number.
    fn clear(&mut self, lane: usize, at: usize) {
        for head in 0..self.shape.heads {
            let first = self.place(lane, head, at, 0);
            self.values[first..first + BLOCK_POSITIONS * self.shape.size].fill(0.0);
        }
    }

    /// Writes rows of all heads to a block, from row `within` on.
    fn put(&mut self, lane: usize, at: usize, within: usize, rows: &[f32]) {
        let WindowShape { heads, size, .. } = self.shape;
        for (row, numbers) in rows.chunks_exact((heads * size).max(1)).enumerate() {
            for (head, numbers) in numbers.chunks_exact(size.max(1)).enumerate() {
                let first = self.place(lane, head, at, within + row);
                self.values[first..first + size].copy_from_slice(numbers);
            }
        }
    }
}
