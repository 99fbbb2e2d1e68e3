//! Resident keys and values, for attention on the array: blocks of 64 positions
//! of all heads, one after another, in one object per layer. The first is that of
//! position 0, or with a window the first that the step attends to. A program for
//! a shorter context reads a prefix of what a program for a longer context reads,
//! so switching between them copies nothing.
//!
//! The contents of each block are tracked, and only changed blocks are written:
//! for a token, the block that contains it, unless a program appends it. When a window moves by a block, all of
//! its blocks are written once.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;

use crate::form::groups::first_block;
use crate::memory::ObjectId;

/// Index of the resident keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResidentKeysId(pub u32);

/// The resident keys and values of a layer.
#[derive(Debug)]
pub(super) struct ResidentKeys {
    /// The name of their tensor.
    pub name: String,
    pub object: ObjectId,
    pub blocks: Vec<BlockContent>,
}

/// The contents of a block; none if it is all zeros, which no row attends to.
pub(super) type BlockContent = Option<KeyBlockRows>;

/// The rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyBlockRows {
    /// The stamps of the state blocks that the keys and the values were copied from.
    pub stamps: [u64; 2],
    /// The positions from the block's first that have rows. The others are zeros: attention multiplies
    /// their values by 0, which must not be infinite or NaN.
    pub rows: usize,
}

impl KeyBlockRows {
    /// The rows of a block up to the position `end`.
    pub fn until(end: u32, block: usize, stamps: [u64; 2]) -> KeyBlockRows {
        let rows = (end as usize).saturating_sub(block * BLOCK_POSITIONS).min(BLOCK_POSITIONS);
        KeyBlockRows { stamps, rows }
    }
}

/// The positions that a step attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttendedRange {
    /// The first block; earlier ones are outside the window of every row.
    pub first: u32,
    /// One past the last position attended to.
    pub end: u32,
}

impl AttendedRange {
    /// The range of a step from `position` to `end`. A window of 0 is none.
    pub fn new(position: u32, end: u32, window: u32) -> AttendedRange {
        AttendedRange { first: first_block(position, window), end }
    }

    /// The numbers of the blocks of positions that the step attends to.
    pub fn blocks(self) -> Range<usize> {
        self.first as usize..(self.end as usize).div_ceil(BLOCK_POSITIONS)
    }
}

/// The ranges of blocks that must be written.
pub(super) fn changed(held: &[BlockContent], required: &[BlockContent]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (block, (held, required)) in held.iter().zip(required).enumerate() {
        if held == required {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end = block + 1,
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}

/// The blocks that the host writes for a step from `position` to `end` if it follows a step with the
/// same number of rows, or is the first of the sequence. It writes the positions up to `written`: `end`, or
/// `position` if a program appends the others. A window of 0 is none.
pub(super) fn changed_after_equal_step(
    [position, written, end]: [u32; 3],
    window: u32,
    blocks: usize,
) -> Vec<Range<usize>> {
    let contents = |seen: AttendedRange| -> Vec<BlockContent> {
        let filled = |block: usize| KeyBlockRows::until(seen.end, block, [block as u64; 2]);
        let mut contents: Vec<BlockContent> = seen.blocks().map(|block| Some(filled(block))).collect();
        contents.resize(blocks, None);
        contents
    };
    let before = AttendedRange::new(position.saturating_sub(end - position), position, window);
    changed(&contents(before), &contents(AttendedRange::new(position, written, window)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ranges: &[Range<usize>]) -> Vec<(usize, usize)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_token_writes_one_block_and_a_prompt_the_blocks_it_covers() {
        let full = |position, end| ends(&changed_after_equal_step([position, end, end], 0, 8));
        assert_eq!(full(200, 201), [(3, 4)]);
        assert_eq!(full(192, 193), [(3, 4)], "a token completed the previous block");
        assert_eq!(full(0, 200), [(0, 4)]);
        assert_eq!(full(128, 256), [(2, 4)], "the previous chunk wrote two others");
        assert_eq!(full(100, 200), [(1, 4)], "the second block was not full");
    }

    /// The bug of the window: every token wrote all of its blocks, because each began with the
    /// position of the token.
    #[test]
    fn a_window_writes_all_of_its_blocks_when_it_moves_by_one() {
        let window = |position, end| ends(&changed_after_equal_step([position, end, end], 64, 3));
        assert_eq!(window(200, 201), [(1, 2)], "the window begins in block 2");
        assert_eq!(AttendedRange::new(200, 201, 64).blocks(), 2..4);
        assert_eq!(window(190, 191), [(1, 2)]);
        assert_eq!(window(191, 192), [(0, 2)], "the window is block 2, and its second block is cleared");
        assert_eq!(window(192, 193), [(1, 2)], "block 3 begins");
        assert_eq!(window(20, 21), [(0, 1)], "the window is not full");
    }

    #[test]
    fn a_token_that_a_program_appends_writes_only_windows_that_move() {
        let full = |position| ends(&changed_after_equal_step([position, position, position + 1], 0, 8));
        assert_eq!([full(63), full(64), full(65)], [vec![], vec![], vec![]]);
        let window = |position| ends(&changed_after_equal_step([position, position, position + 1], 64, 3));
        assert_eq!([window(190), window(192)], [vec![], vec![]]);
        assert_eq!(window(191), [(0, 2)], "the window begins in block 2");
    }

    #[test]
    fn a_shorter_sequence_clears_the_blocks_of_a_longer_one() {
        let stamps = |stamp| Some(KeyBlockRows { stamps: [stamp; 2], rows: 64 });
        let held = [stamps(1), stamps(2), stamps(3)];
        let required = [stamps(1), stamps(4), None];
        assert_eq!(ends(&changed(&held, &required)), [(1, 3)], "the first is unchanged");
        let rewound = Some(KeyBlockRows { stamps: [1; 2], rows: 63 });
        assert_eq!(ends(&changed(&held[..1], &[rewound])), [(0, 1)], "a row is no longer of the sequence");
    }
}
