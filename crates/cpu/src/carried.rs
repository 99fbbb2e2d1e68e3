//! Carried values: one value of each sequence, in the block of its last row and at the ends of the
//! blocks before it.
//!
//! ```text
//! value = part 0 | part 1 | …        equal parts, such as heads, that threads compute alone
//! ```
//! An op either computes rows from [`Carried::before`] and then keeps the last rows of an operand
//! ([`Carried::carry_rows`]); or it computes the value itself, in place ([`Carried::reached`] and
//! [`each_block`]).

use std::ops::Range;

use girih_graph::backend::{Block, Sequence};
use girih_graph::{BLOCK_POSITIONS, Error, GroupId, Value};

use crate::cut::{GroupTile, GroupedOutput, GroupedRows};
use crate::memory::Aligned;
use crate::os::PageUse;

/// The blocks of a carried value.
#[derive(Debug)]
pub(crate) struct Carried {
    pub group: GroupId,
    /// Values in a row of the value.
    width: usize,
    /// Values in a block.
    len: usize,
    values: Aligned<f32>,
    /// The blocks that the sequences of a step reach.
    reached: GroupedRows,
}

/// Calls `f` with the rows of a sequence that belong to each block, and a part of the carried value in that
/// block: the value before these rows, to be replaced by that after them. The sequence has the `rows` of the
/// step, the first one at `position`.
pub(crate) fn each_block(
    rows: Range<usize>,
    position: u32,
    reached: &mut GroupTile<'_, f32>,
    mut f: impl FnMut(Range<usize>, &mut [f32]),
) {
    let (mut start, mut end) =
        (rows.start, rows.start + BLOCK_POSITIONS - position as usize % BLOCK_POSITIONS);
    for index in 0..reached.count() {
        if index > 0 {
            reached.copy_to_next(index - 1);
        }
        f(start..end.min(rows.end), reached.row(index));
        (start, end) = (end, end + BLOCK_POSITIONS);
    }
}

impl Carried {
    /// The bytes of `blocks` blocks.
    pub fn plan(value: &Value, blocks: usize) -> u64 {
        Aligned::<f32>::bytes(value.row_len().saturating_mul(blocks))
    }

    /// Allocates `blocks` blocks of zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(value: &Value, group: GroupId, blocks: usize) -> Result<Carried, Error> {
        let (width, len) = (value.shape.columns(), value.row_len());
        let all = len.checked_mul(blocks).ok_or_else(|| {
            Error::new(format!("{blocks} blocks of '{}' exceed the address space", value.name))
        })?;
        let values = Aligned::zeroed_for(all, &value.name, PageUse::Start)?;
        Ok(Carried { group, width, len, values, reached: GroupedRows::default() })
    }

    /// The bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    /// The range of a block.
    fn block(&self, block: Block) -> Range<usize> {
        block.0 as usize * self.len..(block.0 as usize + 1) * self.len
    }

    /// The block that holds the value after a position of a sequence.
    fn block_after(&self, sequence: &Sequence<'_>, position: usize) -> Range<usize> {
        self.block(sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS])
    }

    /// The value before the first row of a sequence in this step; `None` for zeros.
    pub fn before(&self, sequence: &Sequence<'_>) -> Option<&[f32]> {
        let last = (sequence.position as usize).checked_sub(1)?;
        Some(&self.values[self.block_after(sequence, last)])
    }

    /// Keeps the last rows of `x` at the end of each block that a sequence reaches in this step, and
    /// after its last row. Rows that the step does not have are those that were carried.
    ///
    /// Bytes: one value is written for each of these blocks.
    pub fn carry_rows(&mut self, sequence: &Sequence<'_>, x: &[f32]) {
        let (rows, width) = (sequence.rows.indexes(), self.width);
        let (first, kept) = (sequence.position as usize, self.len / width);
        let end = first + rows.len();
        let before = first.checked_sub(1).map(|last| self.block_after(sequence, last).start);
        // The last block first: the first one may be that of the value before, and a row of it
        // moves only to an earlier place.
        for index in (first / BLOCK_POSITIONS..end.div_ceil(BLOCK_POSITIONS)).rev() {
            let after = end.min((index + 1) * BLOCK_POSITIONS);
            let start = self.block_after(sequence, after - 1).start;
            for row in 0..kept {
                let to = start + row * width;
                // The row of the step that lies `kept − row` rows before `after`.
                match (after + row).checked_sub(first + kept) {
                    Some(step) => {
                        let from = (rows.start + step) * width;
                        self.values[to..to + width].copy_from_slice(&x[from..from + width]);
                    }
                    None => match before {
                        Some(before) => {
                            let from = before + (row + after - first) * width;
                            self.values.copy_within(from..from + width, to);
                        }
                        None => self.values[to..to + width].fill(0.0),
                    },
                }
            }
        }
    }

    /// The blocks that the sequences of a step reach, to be cut into `parts` equal parts. The first block of each
    /// sequence has the value before its first row, zeros at its beginning; [`each_block`] goes on from there.
    ///
    /// Bytes: one value is copied for a sequence whose rows begin a block.
    pub fn reached(&mut self, sequences: &[Sequence<'_>], parts: usize) -> GroupedOutput<'_, f32> {
        self.reached.clear();
        for sequence in sequences.iter().filter(|sequence| !sequence.rows.indexes().is_empty()) {
            let first = sequence.position as usize;
            let blocks =
                first / BLOCK_POSITIONS..(first + sequence.rows.indexes().len()).div_ceil(BLOCK_POSITIONS);
            if first.is_multiple_of(BLOCK_POSITIONS) {
                let to = self.block_after(sequence, first);
                match first.checked_sub(1) {
                    Some(last) => {
                        let from = self.block_after(sequence, last);
                        self.values.copy_within(from, to.start);
                    }
                    None => self.values[to].fill(0.0),
                }
            }
            let of = |index: usize| sequence.blocks[self.group.0 as usize][index].0 as usize;
            self.reached.push(blocks.map(of));
        }
        let (values, width) = (&mut self.values[..], self.len);
        GroupedOutput { values, width, column_step: width / parts, rows: &mut self.reached }
    }

    /// Copies a block to another one.
    pub fn copy(&mut self, from: Block, to: Block) {
        let (from, to) = (self.block(from), self.block(to).start);
        self.values.copy_within(from, to);
    }

    /// Fills a block with zeros.
    pub fn zero(&mut self, block: Block) {
        let range = self.block(block);
        self.values[range].fill(0.0);
    }

    /// The bytes of a block.
    pub fn export(&self, block: Block) -> impl Iterator<Item = u8> {
        self.values[self.block(block)].iter().flat_map(|value| value.to_le_bytes())
    }

    /// Writes the bytes of a block.
    pub fn import(&mut self, block: Block, bytes: &[u8]) {
        let range = self.block(block);
        let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        self.values[range].iter_mut().zip(values).for_each(|(to, value)| *to = value);
    }
}
