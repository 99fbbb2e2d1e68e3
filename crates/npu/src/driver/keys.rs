//! Resident keys and values, for attention on the array: blocks of 64 positions
//! of all heads, one after another. [`KeyRing`] has their slots. A program for
//! a shorter context reads a prefix of what a program for a longer context reads,
//! so switching between them copies nothing.
//!
//! The contents of each slot are tracked, and only changed blocks are written:
//! for a token, the block that contains it, unless a program appends it.
//!
//! A layer has a set of slots, in an object of its own, for each sequence of a step. A sequence gets the set that holds
//! most of its blocks. The choice affects what is written, not what is computed.

use girih_graph::BLOCK_POSITIONS;

use super::ring::{KeyRing, KeyStep, NeededSlot};
use crate::memory::ObjectId;

/// Index of the resident keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResidentKeysId(pub u32);

/// The resident keys and values of a layer.
#[derive(Debug)]
pub(super) struct ResidentKeys {
    /// The name of their tensor.
    pub name: String,
    pub sets: Vec<SlotSet>,
}

/// The resident keys and values of a layer that belong to one sequence at a time.
#[derive(Debug)]
pub(super) struct SlotSet {
    pub object: ObjectId,
    /// The contents of each slot.
    pub slots: Vec<SlotContent>,
    /// The number of the last step that used it, counted per layer.
    pub used: u64,
}

impl SlotSet {
    /// The number of slots that hold these blocks, whatever number of their rows.
    fn held(&self, blocks: &[(usize, [u64; 2])]) -> usize {
        let holds = |(slot, stamps): &&(usize, [u64; 2])| {
            self.slots.get(*slot).and_then(|held| held.rows).is_some_and(|rows| rows.stamps == *stamps)
        };
        blocks.iter().filter(holds).count()
    }
}

/// Returns a set for each sequence, given by the slots and the stamps of its blocks: the one that holds most of
/// them, or the one that was least recently used. There must be as many sets as sequences.
pub(super) fn assigned_sets(sets: &[SlotSet], sequences: &[Vec<(usize, [u64; 2])>]) -> Vec<usize> {
    let mut found: Vec<(usize, usize, usize)> = Vec::new();
    for (sequence, blocks) in sequences.iter().enumerate() {
        let held = sets.iter().map(|set| set.held(blocks)).enumerate();
        found.extend(held.filter(|(_, held)| *held > 0).map(|(set, held)| (held, sequence, set)));
    }
    found.sort_by_key(|&(held, sequence, set)| (std::cmp::Reverse(held), sequence, set));
    let mut assigned = vec![None; sequences.len()];
    let mut free = vec![true; sets.len()];
    for (_, sequence, set) in found {
        if free[set] && assigned[sequence].is_none() {
            (assigned[sequence], free[set]) = (Some(set), false);
        }
    }
    let mut oldest: Vec<usize> = (0..sets.len()).filter(|&set| free[set]).collect();
    oldest.sort_by_key(|&set| (sets[set].used, set));
    let mut oldest = oldest.into_iter();
    let set = |known: Option<usize>| known.or_else(|| oldest.next()).expect("each sequence has a set");
    assigned.into_iter().map(set).collect()
}

/// The contents of a slot. The positions of its block without rows are zeros, or rows of an earlier block: no
/// row attends to them, but attention multiplies their values by 0, so they must not be infinite or NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotContent {
    /// The rows of its block; none if the slot is all zeros.
    rows: Option<KeyBlockRows>,
    /// The rows from the first on that are known to be finite.
    finite: usize,
}

impl SlotContent {
    /// A block that the host has written, with zeros behind its rows.
    pub fn written(rows: Option<KeyBlockRows>, is_finite: bool) -> SlotContent {
        SlotContent { rows, finite: if is_finite { BLOCK_POSITIONS } else { 0 } }
    }

    /// The contents before a program appends the last of these rows. If the step fails then, the slot has a row
    /// that the state lacks and that may not be finite.
    pub fn before_append(self, rows: KeyBlockRows) -> SlotContent {
        SlotContent { rows: Some(rows), finite: self.finite.min(rows.rows - 1) }
    }

    /// The contents after a program has appended the last of these rows.
    pub fn appended(self, rows: KeyBlockRows, is_finite: bool) -> SlotContent {
        let known = self.before_append(rows).finite;
        let finite = if is_finite && known == rows.rows - 1 { rows.rows } else { known };
        SlotContent { rows: Some(rows), finite }
    }

    /// Whether a step that needs these rows, or any finite values, can use the slot.
    fn has(self, rows: Option<KeyBlockRows>) -> bool {
        match rows {
            Some(_) => self.rows == rows,
            None => self.rows.is_none_or(|rows| rows.rows <= self.finite),
        }
    }
}

/// The rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyBlockRows {
    /// The stamps of the state blocks that the keys and the values were copied from.
    pub stamps: [u64; 2],
    /// The positions from the block's first that have rows.
    pub rows: usize,
}

impl KeyBlockRows {
    /// The rows of a block up to the position `end`.
    pub fn until(end: u32, block: usize, stamps: [u64; 2]) -> KeyBlockRows {
        let rows = (end as usize).saturating_sub(block * BLOCK_POSITIONS).min(BLOCK_POSITIONS);
        KeyBlockRows { stamps, rows }
    }
}

/// A slot that a step needs, with the rows of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredSlot {
    pub need: NeededSlot,
    pub rows: Option<KeyBlockRows>,
}

/// The slots that must be written, as runs of consecutive ones.
pub(super) fn changed(held: &[SlotContent], required: &[RequiredSlot]) -> Vec<Vec<RequiredSlot>> {
    let mut runs: Vec<Vec<RequiredSlot>> = Vec::new();
    for &slot in required.iter().filter(|slot| !held[slot.need.slot].has(slot.rows)) {
        let follows = |run: &&mut Vec<RequiredSlot>| {
            run.last().is_some_and(|last| last.need.slot + 1 == slot.need.slot)
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.push(slot),
            None => runs.push(vec![slot]),
        }
    }
    runs
}

/// The numbers of blocks of each run that the host writes for a step, if it follows steps with the same number
/// of rows, or is the first of the sequence.
pub(super) fn changed_after_equal_steps(ring: KeyRing, step: KeyStep) -> Vec<usize> {
    let (rows, appended) = (step.end - step.position, step.end - step.written);
    // A turn, and the step before this one.
    let has_turns = ring.slots() > ring.blocks as usize;
    let count = if has_turns { (BLOCK_POSITIONS as u32).div_ceil(rows.max(1)) + 1 } else { 1 };
    let mut held = vec![SlotContent::default(); ring.slots()];
    for number in (1..=count).rev() {
        let [position, end] = [number, number - 1].map(|number| step.position.saturating_sub(number * rows));
        // Steps between them leave nothing else that this step needs.
        let is_needed = number == 1 || ring.is_turn(KeyStep { position, written: end, end });
        if position < end && is_needed {
            record_step(&mut held, ring, KeyStep { position, written: end - appended.min(end), end });
        }
    }
    record_step(&mut held, ring, step).iter().map(Vec::len).collect()
}

/// Records a step of finite rows in the slots, and returns the runs that the host writes.
fn record_step(held: &mut [SlotContent], ring: KeyRing, step: KeyStep) -> Vec<Vec<RequiredSlot>> {
    let rows = |end, block| KeyBlockRows::until(end, block, [block as u64; 2]);
    let with_rows =
        |need: NeededSlot| RequiredSlot { need, rows: need.block.map(|block| rows(step.written, block)) };
    let required: Vec<RequiredSlot> = ring.needs(step).into_iter().map(with_rows).collect();
    let runs = changed(held, &required);
    for slot in runs.iter().flatten() {
        held[slot.need.slot] = SlotContent::written(slot.rows, true);
    }
    for end in step.written + 1..=step.end {
        let block = (end as usize - 1) / BLOCK_POSITIONS;
        let slot = ring.slot(step.position, block);
        held[slot] = held[slot].appended(rows(end, block), true);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring for single rows of a context of 8192 positions, which reads up to `blocks` blocks.
    fn ring(window: u32, blocks: u32, turn: u32) -> KeyRing {
        let last_first = if window == 0 { 0 } else { (8192 - window) / 64 };
        KeyRing { window, blocks, last_first, turn }
    }

    fn written([position, end]: [u32; 2]) -> KeyStep {
        KeyStep { position, written: end, end }
    }

    fn count(runs: &[Vec<RequiredSlot>]) -> usize {
        runs.iter().map(Vec::len).sum()
    }

    fn appended(position: u32) -> KeyStep {
        KeyStep { position, written: position, end: position + 1 }
    }

    #[test]
    fn a_token_writes_one_block_and_a_prompt_the_blocks_it_covers() {
        let full = |position, end| changed_after_equal_steps(ring(0, 8, 0), written([position, end]));
        assert_eq!(full(200, 201), [1]);
        assert_eq!(full(192, 193), [1], "a token completed the previous block");
        assert_eq!(full(0, 200), [4]);
        assert_eq!(full(128, 256), [2], "the previous chunk wrote two others");
        assert_eq!(full(100, 200), [3], "the second block was not full");
    }

    /// The bug of the window: all of its blocks were written when it moved by one.
    #[test]
    fn a_window_that_moves_writes_at_most_one_block() {
        for (window, blocks, turn) in
            [(1, 4, 0), (3, 4, 62), (64, 2, 5), (70, 3, 7), (512, 12, 0), (512, 9, 31)]
        {
            let ring = ring(window, blocks, turn);
            let mut held = vec![SlotContent::default(); ring.slots()];
            let mut twice = held.clone();
            let mut copied = 0;
            for position in 0..8192 {
                let blocks = count(&record_step(&mut held, ring, appended(position)));
                assert!(blocks <= 1, "{ring:?} at {position}: {blocks} blocks");
                copied += blocks;
                // The block that grows, and one more.
                let all = count(&record_step(&mut twice, ring, written([position, position + 1])));
                assert!((1..=2).contains(&all), "{ring:?} at {position}: {all} blocks");
            }
            // Of each lap, all blocks that the next one needs, too.
            assert!((50..=128).contains(&copied), "{ring:?} copied {copied} blocks");
        }
    }

    /// Programs for contexts of 1,024 and 8,192 positions share an object.
    #[test]
    fn a_program_for_a_longer_context_finds_the_copies_of_a_shorter_one() {
        for turn in [0, 7, 30] {
            let long = ring(512, 12, turn);
            let short = KeyRing { last_first: (1024 - 512) / 64, ..long };
            let mut held = vec![SlotContent::default(); long.slots()];
            for position in 0..4000 {
                let ring = if position < 1024 { short } else { long };
                let blocks = count(&record_step(&mut held, ring, appended(position)));
                assert!(blocks <= 1, "turn {turn} at {position}: {blocks} blocks");
            }
        }
    }

    /// The first position at which a program reads another block than it should, if it appends this number of
    /// slots behind the right one.
    fn misread(ring: KeyRing, shift: usize) -> Option<u32> {
        let mut held = vec![SlotContent::default(); ring.slots()];
        let mut blocks = vec![None; ring.slots() + shift];
        (0..4000).find(|&position| {
            let step = appended(position);
            for slot in record_step(&mut held, ring, step).iter().flatten() {
                blocks[slot.need.slot] = slot.need.block;
            }
            blocks[ring.slot(position, position as usize / 64) + shift] = Some(position as usize / 64);
            let seen = written([position, position + 1]).blocks(ring.window);
            let read = &blocks[ring.first_slot(position)..][..seen.len()];
            !seen.map(Some).eq(read.iter().copied())
        })
    }

    #[test]
    fn a_program_reads_the_blocks_of_its_window() {
        for (window, blocks) in [(1, 4), (64, 2), (70, 4), (512, 12)] {
            for turn in [0, 17, 62] {
                let ring = ring(window, blocks, turn);
                assert_eq!(misread(ring, 0), None, "{ring:?}");
                assert_eq!(misread(ring, 1), Some(0), "{ring:?}");
            }
        }
    }

    /// Layers have turns one after another: in each token at most one copies a complete block, and one begins
    /// a lap.
    #[test]
    fn layers_do_not_write_at_the_same_token() {
        let rings: Vec<KeyRing> = (0..29).map(|turn| ring(1024, 20, turn)).collect();
        let blocks = |position| -> usize {
            rings.iter().flat_map(|ring| changed_after_equal_steps(*ring, appended(position))).sum()
        };
        let each: Vec<usize> = (5000..7000).map(blocks).collect();
        assert_eq!(each.iter().max(), Some(&2));
        assert!(each.iter().sum::<usize>() > 2000 / 64 * 25, "{each:?}");
    }

    /// What an estimate takes for the steps before is what they leave.
    #[test]
    fn equal_steps_leave_what_an_estimate_takes_for_them() {
        for (window, blocks, rows) in [(70, 3, 1), (70, 4, 5), (70, 4, 64), (512, 17, 100), (0, 128, 7)] {
            for is_appended in [true, false].into_iter().filter(|appended| rows == 1 || !appended) {
                let ring = ring(window, blocks, 9);
                let mut held = vec![SlotContent::default(); ring.slots()];
                for position in (0..3000).step_by(rows as usize) {
                    let step = written([position, position + rows]);
                    let step = if is_appended { appended(position) } else { step };
                    let runs: Vec<usize> = record_step(&mut held, ring, step).iter().map(Vec::len).collect();
                    assert_eq!(runs, changed_after_equal_steps(ring, step), "{ring:?} {step:?}");
                }
            }
        }
    }

    #[test]
    fn a_window_that_goes_back_writes_the_block_that_grows() {
        let ring = ring(70, 3, 9);
        let mut held = vec![SlotContent::default(); ring.slots()];
        let mut step = |position| count(&record_step(&mut held, ring, appended(position)));
        for position in 0..1000 {
            step(position);
        }
        assert_eq!([step(999), step(1000), step(998)], [1, 0, 1], "a row was taken back");
        let laps = (800..998).rev().map(&mut step).max();
        assert_eq!(laps, Some(2), "the block that grows, and the one that the window has again");
    }

    #[test]
    fn a_slot_with_finite_rows_of_another_block_need_not_be_cleared() {
        let rows = |stamp, rows| Some(KeyBlockRows { stamps: [stamp; 2], rows });
        let need = |slot, block| NeededSlot { slot, block };
        let held = [(1, true), (2, true), (3, true), (4, false)];
        let held = held.map(|(stamp, is_finite)| SlotContent::written(rows(stamp, 64), is_finite));
        let required = [(Some(0), rows(1, 64)), (Some(1), rows(7, 64)), (None, None), (None, None)];
        let required: Vec<RequiredSlot> = (0..)
            .zip(required)
            .map(|(slot, (block, rows))| RequiredSlot { need: need(slot, block), rows })
            .collect();
        let slots = |runs: Vec<Vec<RequiredSlot>>| -> Vec<Vec<usize>> {
            runs.iter().map(|run| run.iter().map(|slot| slot.need.slot).collect()).collect()
        };
        assert_eq!(slots(changed(&held, &required)), [[1], [3]], "the first is unchanged, the third finite");
        let rewound = RequiredSlot { need: need(0, Some(0)), rows: rows(1, 63) };
        assert_eq!(slots(changed(&held, &[rewound])), [[0]], "a row is no longer of the sequence");
    }

    /// A program appends to a slot with rows of an earlier block.
    #[test]
    fn appended_rows_are_finite_once_the_state_has_them() {
        let rows = |count| KeyBlockRows { stamps: [5; 2], rows: count };
        let stale = SlotContent::written(Some(rows(64)), true);
        assert!(stale.has(None) && !stale.has(Some(rows(1))));
        let begun = stale.before_append(rows(1));
        assert!(begun.has(Some(rows(1))) && !begun.has(None), "the row may be NaN");
        let one = begun.appended(rows(1), true);
        assert!(one.has(None));
        let two = one.before_append(rows(2)).appended(rows(2), false);
        let three = two.before_append(rows(3)).appended(rows(3), true);
        assert!(three.has(Some(rows(3))) && !three.has(None), "the second row is not finite");
        assert!(SlotContent::default().has(None) && SlotContent::written(None, true).has(None));
    }

    /// A sequence keeps its slots in any order of the step, and a new one gets the least recently used.
    #[test]
    fn a_sequence_gets_the_slots_that_hold_its_blocks() {
        let rows = |stamp| KeyBlockRows { stamps: [stamp; 2], rows: 64 };
        let set = |stamps: &[u64], used| {
            let slots = stamps.iter().map(|&stamp| SlotContent::written(Some(rows(stamp)), true)).collect();
            SlotSet { object: ObjectId(0), slots, used }
        };
        // The first two share a prefix.
        let sets = [set(&[1, 2, 3], 9), set(&[1, 2, 4], 9), set(&[5], 7), set(&[6], 8)];
        let blocks = |stamps: &[u64]| stamps.iter().map(|&stamp| [stamp; 2]).enumerate().collect::<Vec<_>>();
        let assigned = |sequences: &[&[u64]]| {
            assigned_sets(&sets, &sequences.iter().map(|stamps| blocks(stamps)).collect::<Vec<_>>())
        };
        assert_eq!(assigned(&[&[1, 2, 4], &[1, 2, 3], &[6]]), [1, 0, 3]);
        assert_eq!(
            assigned(&[&[], &[6], &[9]]),
            [2, 3, 0],
            "those used least recently, the first of equal ones"
        );
        assert_eq!(assigned(&[&[1, 2], &[1, 2, 4], &[1]]), [0, 1, 2], "a prefix is held, too");
    }
}
