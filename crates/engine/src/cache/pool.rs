//! The blocks of one group: which are free, and how many sequences hold each.

use girih_graph::backend::Block;
use girih_graph::{BLOCK_POSITIONS, Span};

/// The blocks of one group of state.
#[derive(Debug)]
pub(super) struct Pool {
    /// How far back a row sees; what lies further back is given up.
    pub span: Span,
    /// The next to be given out is the last.
    free: Vec<Block>,
    /// For each block the number of sequences that hold it.
    holders: Vec<u32>,
}

impl Pool {
    pub fn new(span: Span, blocks: u32) -> Pool {
        Pool { span, free: (0..blocks).rev().map(Block).collect(), holders: vec![0; blocks as usize] }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// A block that nobody holds, now held once.
    ///
    /// # Panics
    /// When none is free; ask [`Pool::free`] first.
    pub fn take(&mut self) -> Block {
        let block = self.free.pop().expect("the caller has seen that enough blocks are free");
        self.holders[block.0 as usize] = 1;
        block
    }

    /// Adds a holder to a held block.
    pub fn share(&mut self, block: Block) {
        let holders = &mut self.holders[block.0 as usize];
        assert!(*holders > 0, "only what somebody holds can be shared");
        *holders += 1;
    }

    /// Takes a holder from a block; the last one frees it.
    pub fn release(&mut self, block: Block) {
        let holders = &mut self.holders[block.0 as usize];
        *holders = holders.checked_sub(1).expect("a block is released by who holds it");
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Whether more than one sequence holds a block.
    pub fn shared(&self, block: Block) -> bool {
        self.holders[block.0 as usize] > 1
    }

    /// The index in its sequence of the first block that a row at `position`
    /// and those after it see.
    pub fn first(&self, position: usize) -> usize {
        self.span.first(position) / BLOCK_POSITIONS
    }
}
