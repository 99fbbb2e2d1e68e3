//! Resident keys and values, for attention on the array: blocks of 64 positions
//! of all heads, one after another from position 0, in one object per layer. A
//! program for a shorter context reads a prefix of what a program for a longer
//! context reads, so switching between them copies nothing.
//!
//! The contents of each block are tracked, and only changed blocks are written:
//! for a token, the block that contains it. A complete block is written once
//! more if the start position in its header would mask some of its keys in the
//! step.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;

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

/// The contents of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockContent {
    /// The stamps of the state blocks that the keys and the values were copied
    /// from; none if the block is all zeros, which no row attends to.
    pub stamps: Option<[u64; 2]>,
    /// The position of the step's first row, as stored in the header of the
    /// block.
    pub start: u32,
}

/// The positions that a step attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttendedRange {
    /// Tokens before the step.
    pub position: u32,
    /// One past the last position attended to.
    pub end: u32,
    /// Whether rows attend to all earlier positions (no window).
    pub full: bool,
}

impl AttendedRange {
    /// Whether a block needs no write.
    fn is_unchanged(self, block: usize, held: BlockContent, required: BlockContent) -> bool {
        let next = (block as u64 + 1) * BLOCK_POSITIONS as u64;
        let complete = next <= u64::from(self.position);
        // The start position in its header lets even the first row of the step
        // attend to all of it.
        let whole = self.full && complete && u64::from(held.start) + 1 >= next;
        held.stamps == required.stamps && (held.start == required.start || whole)
    }

    /// The contents that a block must have, given the stamps of its state
    /// blocks.
    pub fn required(self, block: usize, stamps: [u64; 2]) -> BlockContent {
        let seen = (block * BLOCK_POSITIONS) < self.end as usize;
        if seen {
            BlockContent { stamps: Some(stamps), start: self.position }
        } else {
            BlockContent::default()
        }
    }
}

/// The ranges of blocks that must be written.
pub(super) fn changed(
    seen: AttendedRange,
    held: &[BlockContent],
    required: &[BlockContent],
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (block, (held, required)) in held.iter().zip(required).enumerate() {
        if seen.is_unchanged(block, *held, *required) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end = block + 1,
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}

/// The blocks that a step writes if it follows a step with the same number of
/// rows, or the first step of the sequence.
pub(super) fn changed_after_equal_step(seen: AttendedRange, blocks: usize) -> Vec<Range<usize>> {
    let before = seen.position.saturating_sub(seen.end - seen.position);
    let meets = |block: usize, from: u32, to: u32| {
        let first = (block * BLOCK_POSITIONS) as u64;
        first < u64::from(to) && u64::from(from) < first + BLOCK_POSITIONS as u64
    };
    let held = |block: usize| {
        let old = AttendedRange { position: before, end: seen.position, full: seen.full };
        let stamp = u64::from(meets(block, before, seen.position));
        // Blocks completed by an earlier step can be attended to as a whole.
        let start = if stamp > 0 || !seen.full { before } else { seen.position };
        BlockContent { start, ..old.required(block, [stamp; 2]) }
    };
    let required = |block: usize| {
        let stamp = u64::from(meets(block, before, seen.position));
        let stamp = if meets(block, seen.position, seen.end) { 2 } else { stamp };
        seen.required(block, [stamp; 2])
    };
    let held: Vec<BlockContent> = (0..blocks).map(held).map(unseen_is_empty).collect();
    changed(seen, &held, &(0..blocks).map(required).collect::<Vec<_>>())
}

fn unseen_is_empty(held: BlockContent) -> BlockContent {
    if held.stamps.is_some() { held } else { BlockContent::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(position: u32, end: u32) -> AttendedRange {
        AttendedRange { position, end, full: true }
    }

    fn ends(ranges: &[Range<usize>]) -> Vec<(usize, usize)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_token_writes_one_block_and_a_prompt_the_blocks_it_covers() {
        assert_eq!(ends(&changed_after_equal_step(seen(200, 201), 8)), [(3, 4)]);
        assert_eq!(
            ends(&changed_after_equal_step(seen(192, 193), 8)),
            [(3, 4)],
            "a token completed the previous block"
        );
        assert_eq!(ends(&changed_after_equal_step(seen(0, 200), 8)), [(0, 4)]);
        assert_eq!(
            ends(&changed_after_equal_step(seen(128, 256), 8)),
            [(0, 4)],
            "the heads of the previous chunk contain 0"
        );
        assert_eq!(
            ends(&changed_after_equal_step(seen(256, 384), 8)),
            [(2, 6)],
            "but not those of the chunk before it"
        );
        let window = AttendedRange { full: false, ..seen(200, 201) };
        assert_eq!(ends(&changed_after_equal_step(window, 8)), [(0, 4)], "a window moves with every token");
    }

    #[test]
    fn a_shorter_sequence_clears_the_blocks_of_a_longer_one() {
        let stamps = |stamp| BlockContent { stamps: Some([stamp; 2]), start: 300 };
        let held = [stamps(1), stamps(2), stamps(3)];
        let now = seen(70, 71);
        let required = [now.required(0, [1; 2]), now.required(1, [2; 2]), now.required(2, [3; 2])];
        assert_eq!(required[2], BlockContent::default());
        assert_eq!(ends(&changed(now, &held, &required)), [(1, 3)], "the first is complete and unchanged");
    }
}
