//! Which blocks of state a sequence owns, and which tokens they hold. It is
//! bookkeeping only: the numbers are in the runner's state.
//!
//! There is one sequence for now. It outlives its request, so that the next
//! prompt can go on from the longest prefix that both share. All groups keep
//! all positions: dropping what lies behind a window is not done yet.

use girih_graph::backend::Block;
use girih_graph::{BLOCK_POSITIONS, GroupId};

use crate::{Error, Result};

/// The blocks of all groups, free or owned by the held sequence.
#[derive(Debug)]
pub struct Cache {
    /// The free blocks of each group; the next to be given out is the last.
    free: Vec<Vec<Block>>,
    held: Sequence,
}

/// A sequence as far as it has been run.
#[derive(Debug)]
struct Sequence {
    /// The tokens whose positions the blocks hold.
    tokens: Vec<u32>,
    /// For each group the blocks in order of position.
    blocks: Vec<Vec<Block>>,
}

impl Cache {
    /// An empty cache over so many blocks per group.
    pub fn new(blocks: &[u32]) -> Cache {
        Cache {
            free: blocks.iter().map(|&count| (0..count).rev().map(Block).collect()).collect(),
            held: Sequence { tokens: Vec::new(), blocks: vec![Vec::new(); blocks.len()] },
        }
    }

    /// The tokens that are held.
    pub fn tokens(&self) -> &[u32] {
        &self.held.tokens
    }

    /// The number of free blocks of each group.
    pub fn free(&self) -> Vec<usize> {
        self.free.iter().map(Vec::len).collect()
    }

    /// The blocks of the held sequence, as a lane takes them.
    pub fn blocks(&self) -> Vec<&[Block]> {
        self.held.blocks.iter().map(Vec::as_slice).collect()
    }

    /// Keeps what the held sequence shares with the beginning of `prompt` and
    /// forgets the rest; returns how many positions were kept. The last token
    /// of the prompt is never among them: its logits are needed.
    pub fn resume(&mut self, prompt: &[u32]) -> u32 {
        let pairs = self.held.tokens.iter().zip(prompt);
        let shared = pairs.take_while(|(held, new)| held == new).count();
        let kept = shared.min(prompt.len().saturating_sub(1));
        self.truncate(kept);
        kept as u32
    }

    /// Forgets all positions from `length` on and frees the blocks that hold
    /// none before it.
    pub fn truncate(&mut self, length: usize) {
        self.held.tokens.truncate(length);
        let keep = self.held.tokens.len().div_ceil(BLOCK_POSITIONS);
        for (held, free) in self.held.blocks.iter_mut().zip(&mut self.free) {
            free.extend(held.drain(keep.min(held.len())..).rev());
        }
    }

    /// Takes the blocks that positions up to `end` need, and returns those
    /// that are new: their state is another sequence's until it is zeroed.
    ///
    /// # Errors
    /// When a group has too few blocks.
    pub fn reserve(&mut self, end: u32) -> Result<Vec<(GroupId, Block)>> {
        let need = (end as usize).div_ceil(BLOCK_POSITIONS);
        let mut fresh = Vec::new();
        for (index, (held, free)) in self.held.blocks.iter_mut().zip(&mut self.free).enumerate() {
            while held.len() < need {
                let block = free.pop().ok_or_else(|| {
                    let have = held.len();
                    Error::new(format!(
                        "{end} positions need {need} blocks of state; group {index} has {have}"
                    ))
                })?;
                held.push(block);
                fresh.push((GroupId(index as u32), block));
            }
        }
        Ok(fresh)
    }

    /// Notes that the positions after the held ones now hold `tokens`.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.held.tokens.extend_from_slice(tokens);
    }
}
