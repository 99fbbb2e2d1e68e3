//! Which blocks of state a sequence holds, and which tokens they stand for. It
//! is bookkeeping only: the numbers are in the runner's state.
//!
//! A sequence outlives its request. What it has run stays held until the blocks
//! are needed, the least recently used sequence going first, and a new prompt
//! goes on from the longest prefix that it shares with any sequence, also with
//! one that is still being worked on. Blocks are shared, not copied: a block is
//! free when its last holder lets go of it. A sequence that is about to write
//! into a block that others hold too gets a copy of it first; that is at most
//! the one block in which the shared prefix ends.
//!
//! Where rows see a window, a sequence needs no more than that: the blocks behind
//! it are given up first when blocks run short. A prefix that ends so far back
//! that its own window is gone cannot be resumed, and is not.

mod pool;

use girih_graph::backend::Block;
use girih_graph::{BLOCK_POSITIONS, GroupId, Key, Span};

use pool::Pool;

/// The name of a sequence within its cache; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// What must be done to a group's state before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The block is new to its sequence; what it holds was another's.
    Zero(GroupId, Block),
    /// The block takes the place of one that others go on holding.
    Copy {
        /// The group of both.
        group: GroupId,
        /// The block that is shared.
        from: Block,
        /// The sequence's own block from now on.
        to: Block,
    },
}

/// The blocks of all groups, free or held by sequences.
#[derive(Debug)]
pub struct Cache {
    pools: Vec<Pool>,
    sequences: Vec<CachedSequence>,
    /// Counts what has been begun or ended: the age of sequences, and which of
    /// them was used last.
    clock: u64,
}

/// A sequence as far as it has been run.
#[derive(Debug)]
struct CachedSequence {
    id: SequenceId,
    /// The tokens that have been run.
    tokens: Vec<u32>,
    /// One entry per group.
    pages: Vec<Pages>,
    /// How many of them it shared when it began.
    begun: usize,
    /// When it was last used, once its request has ended.
    ended: Option<u64>,
}

/// A sequence's blocks of one group.
#[derive(Clone, Debug)]
struct Pages {
    /// In order of position. Those before `first` are held no longer; they only
    /// keep the place of theirs in the list.
    blocks: Vec<Block>,
    /// The first block that is held.
    first: usize,
}

impl Pages {
    fn held(&self) -> &[Block] {
        &self.blocks[self.first..]
    }

    /// The index of the first block that rows from `position` on see.
    fn needed(&self, pool: &Pool, position: usize) -> usize {
        pool.first(position).min(self.blocks.len())
    }

    /// How many blocks are held that those rows do not see.
    fn behind(&self, pool: &Pool, position: usize) -> usize {
        self.needed(pool, position).saturating_sub(self.first)
    }
}

/// The blocks that a group needs so that `key.sequences` sequences of `key.context`
/// positions can be worked on together, in steps of `key.rows` rows in all.
///
/// With a window of `n`, a sequence that brings `r` rows touches `n − 1 + r`
/// positions in a row, which lie in up to `⌈(n + r − 2) / 64⌉ + 1` blocks
/// however they start. That is at most `⌈(n − 1) / 64⌉ + 1 + (r + 62) / 64`,
/// and the rows of all sequences are at most `key.rows`. A mutual span changes
/// nothing, as it lies within the rows of its step.
pub fn blocks(span: Span, key: &Key) -> u32 {
    let whole = key.context.div_ceil(BLOCK_POSITIONS as u32).saturating_mul(key.sequences);
    match span {
        Span::Full => whole,
        Span::Window(length) => {
            let behind = key.sequences.saturating_mul(window_blocks(length));
            whole.min(behind.saturating_add(step_blocks(key.rows, key.sequences)))
        }
    }
}

/// Blocks in which a sequence's window of so many positions may lie.
fn window_blocks(length: u32) -> u32 {
    (length - 1).div_ceil(BLOCK_POSITIONS as u32) + 1
}

/// Blocks that the rows of one step may need beyond those windows.
fn step_blocks(rows: u32, sequences: u32) -> u32 {
    let edge = BLOCK_POSITIONS as u32 - 2;
    rows.saturating_add(sequences.saturating_mul(edge)) / BLOCK_POSITIONS as u32
}

impl Cache {
    /// An empty cache over the groups of these spans, with so many blocks each.
    pub fn new(spans: &[Span], blocks: &[u32]) -> Cache {
        assert_eq!(spans.len(), blocks.len(), "a group has a span and a number of blocks");
        let pools = spans.iter().zip(blocks).map(|(span, blocks)| Pool::new(*span, *blocks));
        Cache { pools: pools.collect(), sequences: Vec::new(), clock: 0 }
    }

    /// The number of free blocks of each group.
    pub fn free(&self) -> Vec<usize> {
        self.pools.iter().map(Pool::free).collect()
    }

    /// Every sequence and the tokens it has run, the oldest first.
    pub fn sequences(&self) -> impl Iterator<Item = (SequenceId, &[u32])> {
        self.sequences.iter().map(|sequence| (sequence.id, sequence.tokens.as_slice()))
    }

    /// How many tokens a sequence has run.
    pub fn length(&self, id: SequenceId) -> u32 {
        self.sequences[self.find(id)].tokens.len() as u32
    }

    /// The blocks of a sequence, as a sequence takes them.
    pub fn sequence(&self, id: SequenceId) -> Vec<&[Block]> {
        self.sequences[self.find(id)].pages.iter().map(|pages| pages.blocks.as_slice()).collect()
    }

    /// Begins a sequence with what it can share of the beginning of `prompt`;
    /// returns how many positions that is. The last token of the prompt is
    /// never among them: its logits are needed.
    pub fn begin(&mut self, prompt: &[u32]) -> (SequenceId, u32) {
        let now = self.tick();
        let (pages, shared) = match self.longest(prompt) {
            Some((source, length)) => (self.share(source, length, now), length),
            None => (vec![Pages { blocks: Vec::new(), first: 0 }; self.pools.len()], 0),
        };
        let tokens = prompt[..shared].to_vec();
        self.sequences.push(CachedSequence {
            id: SequenceId(now),
            tokens,
            begun: shared,
            pages,
            ended: None,
        });
        (SequenceId(now), shared as u32)
    }

    /// The sequence that shares the longest beginning with `prompt` from where
    /// it can be resumed, and the length of it; the oldest of several.
    fn longest(&self, prompt: &[u32]) -> Option<(usize, usize)> {
        let lengths = self.sequences.iter().enumerate().map(|(index, sequence)| {
            let pairs = sequence.tokens.iter().zip(prompt);
            let shared = pairs.take_while(|(held, new)| held == new).count();
            (index, shared.min(prompt.len().saturating_sub(1)))
        });
        let resumable = lengths.filter(|(index, length)| *length > 0 && self.resumes(*index, *length));
        resumable.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// Whether a sequence still holds what a row at `position` sees. What it
    /// does not hold for one position it holds for none before it, either.
    fn resumes(&self, index: usize, position: usize) -> bool {
        let mut groups = self.pools.iter().zip(&self.sequences[index].pages);
        groups.all(|(pool, pages)| pages.first <= pool.first(position))
    }

    /// Shares the blocks that positions from `length` on see.
    fn share(&mut self, source: usize, length: usize, now: u64) -> Vec<Pages> {
        let source = &mut self.sequences[source];
        source.ended = source.ended.map(|_| now);
        let mut pages = source.pages.clone();
        for (pool, pages) in self.pools.iter_mut().zip(&mut pages) {
            pages.blocks.truncate(length.div_ceil(BLOCK_POSITIONS));
            pages.first = pages.needed(pool, length);
            pages.held().iter().for_each(|block| pool.share(*block));
        }
        pages
    }

    /// Gives a sequence blocks of its own for the positions after those it has
    /// run, up to `end`. Where blocks run short, those behind a window go first,
    /// then ended sequences. Returns what is to be done to the state, or nothing
    /// when even so the blocks do not suffice; then no ended sequence is left.
    pub fn reserve(&mut self, id: SequenceId, end: u32) -> Option<Vec<Change>> {
        while !self.suffices(id, end) {
            if !self.trim() {
                self.evict()?;
            }
        }
        let index = self.find(id);
        let CachedSequence { tokens, pages, .. } = &mut self.sequences[index];
        let mut changes = Vec::new();
        for (number, (pool, pages)) in self.pools.iter_mut().zip(pages).enumerate() {
            let group = GroupId(number as u32);
            if let Some(from) = tail(pages, tokens.len()).filter(|block| pool.shared(*block)) {
                let to = pool.take();
                pool.release(from);
                pages.blocks[tokens.len() / BLOCK_POSITIONS] = to;
                changes.push(Change::Copy { group, from, to });
            }
            while pages.blocks.len() < (end as usize).div_ceil(BLOCK_POSITIONS) {
                let block = pool.take();
                pages.blocks.push(block);
                changes.push(Change::Zero(group, block));
            }
        }
        Some(changes)
    }

    /// Whether each group has as many free blocks as a sequence lacks.
    fn suffices(&self, id: SequenceId, end: u32) -> bool {
        let CachedSequence { tokens, pages, .. } = &self.sequences[self.find(id)];
        self.pools.iter().zip(pages).all(|(pool, pages)| {
            let fresh = (end as usize).div_ceil(BLOCK_POSITIONS).saturating_sub(pages.blocks.len());
            let copied = tail(pages, tokens.len()).is_some_and(|block| pool.shared(block));
            fresh + usize::from(copied) <= pool.free()
        })
    }

    /// Lets the sequence that holds most behind a window give up the oldest
    /// block of it; `false` when nobody holds anything there.
    fn trim(&mut self) -> bool {
        let groups = || 0..self.pools.len();
        let behind = |index: usize, group: usize| {
            let sequence = &self.sequences[index];
            sequence.pages[group].behind(&self.pools[group], sequence.tokens.len())
        };
        let pages = (0..self.sequences.len()).flat_map(|index| groups().map(move |group| (index, group)));
        let most = pages.max_by_key(|(index, group)| behind(*index, *group));
        let Some((index, group)) = most.filter(|(index, group)| behind(*index, *group) > 0) else {
            return false;
        };
        let pages = &mut self.sequences[index].pages[group];
        self.pools[group].release(pages.blocks[pages.first]);
        pages.first += 1;
        true
    }

    /// Forgets the ended sequence that was used least recently, if there is one.
    fn evict(&mut self) -> Option<()> {
        let ended = self.sequences.iter().filter_map(|sequence| Some((sequence.ended?, sequence.id)));
        let (_, id) = ended.min()?;
        self.discard(id);
        Some(())
    }

    /// Notes that a sequence has run `tokens` at the positions after those it
    /// had run.
    pub fn extend(&mut self, id: SequenceId, tokens: &[u32]) {
        let index = self.find(id);
        self.sequences[index].tokens.extend_from_slice(tokens);
    }

    /// Ends a sequence. What it has run stays held as long as its blocks are not
    /// needed; one that has run nothing of its own is forgotten.
    pub fn end(&mut self, id: SequenceId) {
        let now = self.tick();
        let index = self.find(id);
        let sequence = &mut self.sequences[index];
        if sequence.tokens.len() == sequence.begun {
            self.discard(id);
            return;
        }
        sequence.ended = Some(now);
        let run = sequence.tokens.len().div_ceil(BLOCK_POSITIONS);
        for (pool, pages) in self.pools.iter_mut().zip(&mut sequence.pages) {
            pages.blocks.drain(run..).for_each(|block| pool.release(block));
        }
    }

    /// Forgets a sequence.
    pub fn discard(&mut self, id: SequenceId) {
        let index = self.find(id);
        let sequence = self.sequences.remove(index);
        for (pool, pages) in self.pools.iter_mut().zip(&sequence.pages) {
            pages.held().iter().rev().for_each(|block| pool.release(*block));
        }
    }

    /// Forgets all ended sequences.
    pub fn forget(&mut self) {
        while self.evict().is_some() {}
    }

    /// Whether a new sequence that will soon have `new` tokens fits beside those
    /// that are being worked on, each with the number of tokens that it will
    /// soon have, in steps of `rows` rows in all.
    pub fn admits(&self, working: &[(SequenceId, u32)], new: u32, rows: u32) -> bool {
        let step = step_blocks(rows, working.len() as u32 + 1) as usize;
        self.pools.iter().enumerate().all(|(group, pool)| {
            let mut held = vec![false; pool.total()];
            let needed = |id: SequenceId| {
                let CachedSequence { tokens, pages, .. } = &self.sequences[self.find(id)];
                &pages[group].blocks[pages[group].needed(pool, tokens.len())..]
            };
            let blocks = working.iter().flat_map(|(id, _)| needed(*id));
            blocks.for_each(|block| held[block.0 as usize] = true);
            let room = held.iter().filter(|held| !**held).count();
            let lacking = |most: u32| {
                let need = |tokens: u32| tokens.div_ceil(BLOCK_POSITIONS as u32).min(most) as usize;
                let lacking =
                    working.iter().map(|(id, tokens)| need(*tokens).saturating_sub(needed(*id).len()));
                need(new) + lacking.sum::<usize>()
            };
            let windows = match pool.span {
                Span::Full => usize::MAX,
                Span::Window(length) => lacking(window_blocks(length)) + step,
            };
            lacking(u32::MAX).min(windows) <= room
        })
    }

    fn find(&self, id: SequenceId) -> usize {
        self.sequences.binary_search_by_key(&id, |sequence| sequence.id).expect("the sequence is held")
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// The block into which the position `length` would be written, if it is held
/// and holds others.
fn tail(pages: &Pages, length: usize) -> Option<Block> {
    let begun = !length.is_multiple_of(BLOCK_POSITIONS);
    pages.blocks.get(length / BLOCK_POSITIONS).copied().filter(|_| begun)
}
