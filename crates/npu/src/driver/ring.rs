//! Where the resident blocks of keys and values of a layer lie.
//!
//! A program reads consecutive blocks, from an address that the host patches in each step. Without a window it
//! is always the same. A window moves along the slots of its object, which has room for a lap and for what a
//! program reads; the blocks of the next lap begin at slot 0 again:
//!
//! ```text
//! slot   0  1  2  3  4  5       programs read 3 blocks, a lap has 3
//! lap 0  0  1  2
//!           1  2  3
//!        3     2  3  4          block 3 is complete: it is copied to its slot of the next lap
//!        3  4     3  4  5
//! lap 1  3  4  5                the block that grows is written again
//! ```
//!
//! So a window that moves writes one block. Each layer copies at one position of the 64 of a block, its turn, so
//! that layers copy at different tokens. The position after a turn may begin a lap: then the host writes the block that grows.

use std::ops::Range;

use girih_graph::{BLOCK_POSITIONS, Graph, Role, Span, StateKind};

use crate::form::groups::{ArrayTensor, Groups, TensorKind, attended_blocks, first_block};

/// Positions of a block.
const POSITIONS: u32 = BLOCK_POSITIONS as u32;

/// The number of turns. The position after a turn is in the same block of positions, or a lap would begin with
/// two blocks.
const TURNS: u32 = POSITIONS - 1;

/// The positions of a step among those of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyStep {
    /// The position of the first row, padding included.
    pub position: u32,
    /// One past the last position whose keys and values the host writes.
    pub written: u32,
    /// One past the position of the last row. A program appends those from `written` on.
    pub end: u32,
}

impl KeyStep {
    /// The blocks of positions that the step attends to and that the host writes.
    pub fn blocks(self, window: u32) -> Range<usize> {
        first_block(self.position, window) as usize..(self.written as usize).div_ceil(BLOCK_POSITIONS)
    }

    /// Whether the step has a row at such a position of a block.
    fn has_position_in_block(self, position: u32) -> bool {
        let next = self.position + (position + POSITIONS - self.position % POSITIONS) % POSITIONS;
        next < self.end
    }
}

/// A slot that a step needs, and the block of positions that it must have; none if any finite values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededSlot {
    pub slot: usize,
    pub block: Option<usize>,
}

/// The slots of a layer, as a program uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyRing {
    /// The number of preceding positions that rows attend to; 0 for all.
    pub window: u32,
    /// The number of blocks that the program reads.
    pub blocks: u32,
    /// The first block of the program's last step.
    pub last_first: u32,
    /// The position within a block at which complete blocks are copied ahead of the next lap.
    pub turn: u32,
}

impl KeyRing {
    /// The ring of each tensor of chunks; none for other tensors.
    pub fn all(graph: &Graph, groups: &Groups) -> Vec<Option<KeyRing>> {
        let mut turns = (0..TURNS).cycle();
        let ring = |tensor: &ArrayTensor| {
            let turn = if tensor.kind == TensorKind::Chunks { turns.next()? } else { return None };
            let window = window_of(graph, &tensor.name);
            let last_first = first_block(graph.key.context.saturating_sub(1), window);
            Some(KeyRing { window, blocks: tensor.padded[0] / tensor.extent[0].max(1), last_first, turn })
        };
        groups.tensors.iter().map(ring).collect()
    }

    /// The number of slots.
    pub fn slots(self) -> usize {
        (self.blocks + self.last_first.min(self.lap_blocks())) as usize
    }

    /// The blocks of a lap: those that a row attends to. They depend on the window only, so all programs have
    /// the same laps.
    fn lap_blocks(self) -> u32 {
        attended_blocks(1, u32::MAX, self.window)
    }

    /// The number of the lap in which a step begins.
    fn lap(self, position: u32) -> u32 {
        if self.last_first < self.lap_blocks() {
            return 0;
        }
        // The first row whose window begins with the lap, and from there the position after the turn.
        let begin = self.window - 1;
        let delay = (self.turn + 1 + POSITIONS - begin % POSITIONS) % POSITIONS;
        let passed = u64::from(position).checked_sub(u64::from(begin) + u64::from(delay));
        passed.map_or(0, |passed| passed / (u64::from(self.lap_blocks()) * u64::from(POSITIONS))) as u32
    }

    /// The first block of the lap after that in which a step begins.
    fn next_lap(self, position: u32) -> u32 {
        (self.lap(position) + 1).saturating_mul(self.lap_blocks())
    }

    /// Whether complete blocks are copied in a step: it has the row of the turn, and the rows do not end behind the next
    /// lap. That lap may be one of a program for a longer context, which shares the object.
    pub fn is_turn(self, step: KeyStep) -> bool {
        let is_next = self.lap(step.end) <= self.lap(step.position) + 1;
        is_next && step.has_position_in_block(self.turn)
    }

    /// The number of tokens after which the host has the same work again.
    pub fn period(self) -> u32 {
        if self.last_first < self.lap_blocks() { POSITIONS } else { self.lap_blocks() * POSITIONS }
    }

    /// The slot of the first block that a step attends to.
    pub fn first_slot(self, position: u32) -> usize {
        (first_block(position, self.window) - self.lap(position) * self.lap_blocks()) as usize
    }

    /// The slot of a block that a step attends to.
    pub fn slot(self, position: u32, block: usize) -> usize {
        block + self.first_slot(position) - first_block(position, self.window) as usize
    }

    /// The slots that a step needs, in order: those of blocks that are copied ahead, and those that it reads.
    pub fn needs(self, step: KeyStep) -> Vec<NeededSlot> {
        let (seen, first_slot) = (step.blocks(self.window), self.first_slot(step.position));
        let ahead = self.ahead(step).map(|(slot, block)| NeededSlot { slot, block: Some(block) });
        let read = (0..self.blocks as usize).map(|number| NeededSlot {
            slot: first_slot + number,
            block: Some(seen.start + number).filter(|block| seen.contains(block)),
        });
        ahead.chain(read).collect()
    }

    /// The blocks that are copied ahead of the next lap, with their slots there: complete ones, which the window
    /// then has, on slots before those that the step reads.
    fn ahead(self, step: KeyStep) -> impl Iterator<Item = (usize, usize)> {
        let next = self.next_lap(step.position) as usize;
        let seen = step.blocks(self.window);
        let complete = if self.is_turn(step) { step.written as usize / BLOCK_POSITIONS } else { 0 };
        let count = complete.saturating_sub(next).min(self.first_slot(step.position));
        (0..count).map(move |slot| (slot, next + slot)).filter(move |(_, block)| seen.contains(block))
    }
}

/// The number of preceding positions that rows attend to among the keys and values of
/// the chunk tensor `name`; 0 for all.
pub(super) fn window_of(graph: &Graph, name: &str) -> u32 {
    let keys = name.split_once('|').map_or(name, |(keys, _)| keys);
    let role = graph.find(keys).map(|keys| graph.value(keys).role);
    let Some(Role::State(group)) = role else { return 0 };
    match graph.groups[group.0 as usize].kind {
        StateKind::Positions { span: Span::Window(window) | Span::Chunk(window) } => window,
        StateKind::Positions { span: Span::Full | Span::Past | Span::All | Span::Mutual }
        | StateKind::Carried => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_lap_follow_one_another_and_the_next_lap_begins_at_the_first_slot() {
        let ring = KeyRing { window: 64, blocks: 3, last_first: 31, turn: 4 };
        assert_eq!((ring.lap_blocks(), ring.slots()), (2, 5));
        let slots =
            |position| [0, 1].map(|number| ring.slot(position, (position as usize + 1 - 64) / 64 + number));
        assert_eq!((slots(63), slots(126)), ([0, 1], [0, 1]));
        assert_eq!((slots(127), slots(190)), ([1, 2], [1, 2]), "the window begins in block 1");
        assert_eq!((slots(191), slots(196)), ([2, 3], [2, 3]), "in block 2, before the turn and at it");
        assert_eq!((slots(197), slots(255)), ([0, 1], [1, 2]), "the next lap");
        let copied = |position| {
            let step = KeyStep { position, written: position, end: position + 1 };
            ring.ahead(step).collect::<Vec<_>>()
        };
        assert_eq!((copied(195), copied(196), copied(197)), (vec![], vec![(0, 2)], vec![]));
        assert_eq!(copied(132), [], "block 2 is not complete");
    }

    /// Each step reads slots that exist, and copies to slots that it does not read.
    #[test]
    fn steps_read_and_copy_within_the_slots() {
        for window in [1, 2, 63, 64, 65, 70, 512, 4096] {
            for (rows, turn) in [(1, 0), (1, 62), (3, 30), (64, 5), (200, 62)] {
                let context = 16_384;
                let blocks = attended_blocks(rows, context, window).next_multiple_of(4);
                let last_first = first_block(context - 1, window);
                let ring = KeyRing { window, blocks, last_first, turn };
                // Beside other sequences, a step begins with fewer rows than the program has.
                for position in 0..context {
                    let end = (position + rows).min(context);
                    let step = KeyStep { position, written: end, end };
                    let needs = ring.needs(step);
                    assert!(needs.is_sorted_by(|one, next| one.slot < next.slot), "{ring:?} {step:?}");
                    assert!(needs.iter().all(|need| need.slot < ring.slots()), "{ring:?} {step:?}");
                    let blocks = needs.iter().filter_map(|need| need.block);
                    assert!(blocks.max() < Some(step.written.div_ceil(64) as usize), "{ring:?} {step:?}");
                }
            }
        }
    }

    #[test]
    fn without_a_window_nothing_moves() {
        let ring = KeyRing { window: 0, blocks: 8, last_first: 0, turn: 3 };
        assert_eq!((ring.slots(), ring.first_slot(500)), (8, 0));
        let short = KeyRing { window: 600, blocks: 8, last_first: 0, turn: 3 };
        assert_eq!((short.slots(), short.first_slot(511)), (8, 0));
    }
}
