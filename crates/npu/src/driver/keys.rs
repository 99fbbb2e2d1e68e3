//! Keys and values where the array attends to them: blocks of 64 positions of
//! all heads, one after another from position 0 on, in one object for each
//! layer. So a program for a shorter context reads the beginning of what one
//! for a longer context reads, and going from the one to the other copies
//! nothing.
//!
//! What a block holds is remembered, and only what has changed is written: of
//! a token, the block that it lies in. A block that is complete is written once
//! more if its head says that the step begins too early for all of its keys to
//! be seen.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;

use crate::memory::ObjectId;

/// Index of the keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResidentKeysId(pub u32);

/// The keys and values of a layer, as the array has them.
#[derive(Debug)]
pub(super) struct ResidentKeys {
    /// The value that they are made from.
    pub name: String,
    pub object: ObjectId,
    pub blocks: Vec<BlockContent>,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockContent {
    /// The blocks of state that keys and values are copies of, by their
    /// stamps; none if it is all zeros, which nobody sees.
    pub stamps: Option<[u64; 2]>,
    /// The position of the step's first row, as the block's head says.
    pub start: u32,
}

/// A step as its blocks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttendedRange {
    /// Tokens before the step.
    pub position: u32,
    /// One past the last position that is seen.
    pub end: u32,
    /// Whether rows see all that lies before them.
    pub full: bool,
}

impl AttendedRange {
    /// Whether a block may stay as it is.
    fn stays(self, block: usize, held: BlockContent, wanted: BlockContent) -> bool {
        let next = (block as u64 + 1) * BLOCK_POSITIONS as u64;
        let complete = next <= u64::from(self.position);
        // Its head lets even the step's first row see all of it.
        let whole = self.full && complete && u64::from(held.start) + 1 >= next;
        held.stamps == wanted.stamps && (held.start == wanted.start || whole)
    }

    /// What a block must hold if those that are seen have these stamps.
    pub fn wanted(self, block: usize, stamps: [u64; 2]) -> BlockContent {
        let seen = (block * BLOCK_POSITIONS) < self.end as usize;
        if seen {
            BlockContent { stamps: Some(stamps), start: self.position }
        } else {
            BlockContent::default()
        }
    }
}

/// Which blocks have to be written, in ranges, if these are wanted.
pub(super) fn changed(
    seen: AttendedRange,
    held: &[BlockContent],
    wanted: &[BlockContent],
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (block, (held, wanted)) in held.iter().zip(wanted).enumerate() {
        if seen.stays(block, *held, *wanted) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end = block + 1,
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}

/// The blocks that a step writes which follows a step of as many rows, or that
/// which began the sequence.
pub(super) fn usual(seen: AttendedRange, blocks: usize) -> Vec<Range<usize>> {
    let before = seen.position.saturating_sub(seen.end - seen.position);
    let meets = |block: usize, from: u32, to: u32| {
        let first = (block * BLOCK_POSITIONS) as u64;
        first < u64::from(to) && u64::from(from) < first + BLOCK_POSITIONS as u64
    };
    let held = |block: usize| {
        let old = AttendedRange { position: before, end: seen.position, full: seen.full };
        let stamp = u64::from(meets(block, before, seen.position));
        // What an earlier step has completed is whole.
        let start = if stamp > 0 || !seen.full { before } else { seen.position };
        BlockContent { start, ..old.wanted(block, [stamp; 2]) }
    };
    let wanted = |block: usize| {
        let stamp = u64::from(meets(block, before, seen.position));
        let stamp = if meets(block, seen.position, seen.end) { 2 } else { stamp };
        seen.wanted(block, [stamp; 2])
    };
    let held: Vec<BlockContent> = (0..blocks).map(held).map(unseen_is_empty).collect();
    changed(seen, &held, &(0..blocks).map(wanted).collect::<Vec<_>>())
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
    fn a_token_writes_its_block_and_a_prompt_its_own() {
        assert_eq!(ends(&usual(seen(200, 201), 8)), [(3, 4)]);
        assert_eq!(ends(&usual(seen(192, 193), 8)), [(3, 4)], "the block before was completed by a token");
        assert_eq!(ends(&usual(seen(0, 200), 8)), [(0, 4)]);
        assert_eq!(ends(&usual(seen(128, 256), 8)), [(0, 4)], "heads of the chunk before say 0");
        assert_eq!(ends(&usual(seen(256, 384), 8)), [(2, 6)], "but not of the chunk before that");
        let window = AttendedRange { full: false, ..seen(200, 201) };
        assert_eq!(ends(&usual(window, 8)), [(0, 4)], "a window moves past every block");
    }

    #[test]
    fn a_shorter_sequence_forgets_what_a_longer_one_left() {
        let stamps = |stamp| BlockContent { stamps: Some([stamp; 2]), start: 300 };
        let held = [stamps(1), stamps(2), stamps(3)];
        let now = seen(70, 71);
        let wanted = [now.wanted(0, [1; 2]), now.wanted(1, [2; 2]), now.wanted(2, [3; 2])];
        assert_eq!(wanted[2], BlockContent::default());
        assert_eq!(ends(&changed(now, &held, &wanted)), [(1, 3)], "the first is complete and the same");
    }
}
