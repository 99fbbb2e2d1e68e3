//! The blocks of one state group: the free ones, and the number of holders of each.

use girih_graph::StateKind;
use girih_graph::backend::Block;

/// The blocks of one state group, with reference counts.
#[derive(Debug)]
pub(super) struct BlockPool {
    /// What the blocks hold; those that no later row reads may be released.
    pub kind: StateKind,
    /// The free blocks; the last one is allocated next.
    free: Vec<Block>,
    /// The number of sequences that hold each block.
    holders: Vec<u32>,
}

impl BlockPool {
    pub fn new(kind: StateKind, blocks: u32) -> BlockPool {
        BlockPool { kind, free: (0..blocks).rev().map(Block).collect(), holders: vec![0; blocks as usize] }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Allocates a free block; it then has one holder.
    ///
    /// # Panics
    /// When no block is free; check [`BlockPool::free`] first.
    pub fn take(&mut self) -> Block {
        let block = self.free.pop().expect("the caller checked that enough blocks are free");
        self.holders[block.0 as usize] = 1;
        block
    }

    /// Adds a holder to a held block.
    pub fn share(&mut self, block: Block) {
        let holders = &mut self.holders[block.0 as usize];
        assert!(*holders > 0, "a shared block has a holder");
        *holders += 1;
    }

    /// Removes a holder from a block; frees the block if it was the last one.
    pub fn release(&mut self, block: Block) {
        let holders = &mut self.holders[block.0 as usize];
        *holders = holders.checked_sub(1).expect("a released block has a holder");
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Whether more than one sequence holds a block.
    pub fn shared(&self, block: Block) -> bool {
        self.holders[block.0 as usize] > 1
    }
}
