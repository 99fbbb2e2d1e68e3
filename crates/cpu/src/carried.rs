//! Carried values: one value of each sequence, in the block of its last row and at the ends of the
//! blocks before it.

use std::ops::Range;

use girih_graph::backend::{Block, Sequence};
use girih_graph::{BLOCK_POSITIONS, Error, GroupId, Value};

use crate::memory::Aligned;
use crate::os::PageUse;

/// The blocks of a carried value, which is a number of rows.
#[derive(Debug)]
pub(crate) struct CarriedRows {
    pub group: GroupId,
    /// Values in a row.
    width: usize,
    /// Values in a block.
    len: usize,
    values: Aligned<f32>,
}

impl CarriedRows {
    /// The bytes of `blocks` blocks.
    pub fn plan(value: &Value, blocks: usize) -> u64 {
        Aligned::<f32>::bytes(value.row_len().saturating_mul(blocks))
    }

    /// Allocates `blocks` blocks of zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(value: &Value, group: GroupId, blocks: usize) -> Result<CarriedRows, Error> {
        let (width, len) = (value.shape.columns(), value.row_len());
        let all = len.checked_mul(blocks).ok_or_else(|| {
            Error::new(format!("{blocks} blocks of '{}' exceed the address space", value.name))
        })?;
        let values = Aligned::zeroed_for(all, &value.name, PageUse::Start)?;
        Ok(CarriedRows { group, width, len, values })
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
    pub fn carry(&mut self, sequence: &Sequence<'_>, x: &[f32]) {
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
