//! The prefix cache: the blocks of state that each sequence holds, and the tokens
//! that they were computed from. It does bookkeeping only; the values are in the
//! runner's state.
//!
//! Tenants share nothing: a prompt finds only prefixes of its own tenant, so neither its
//! speed nor its numbers tell what another tenant asked. Each model has a cache of its own.
//!
//! A sequence outlives its request. Its blocks stay held until they are needed;
//! then the least recently used sequence is evicted first. A new prompt resumes
//! from the longest prefix that it shares with any sequence, including one whose
//! request is active. Blocks are shared, not copied, and a block is free when its
//! last holder releases it. A sequence that will write into a shared block gets a
//! copy first (copy on write); this affects at most the one block in which the
//! shared prefix ends.
//!
//! In a group with a sliding window, a sequence needs only the blocks within the
//! window; the blocks behind it are released first when blocks run short. A prefix
//! cannot be resumed if the blocks of its own window were released.
//!
//! A carried value is known after the last row that was run in a block. So a prefix is resumed at
//! the end of a block, or where its sequence ends, and the rows from there on are run again. Of
//! the values that a sequence has kept, the oldest are released first.
//!
//! The next turn of a conversation often differs from this one right after the prompt, because its template
//! leaves out the thinking of the reply. So the blocks that a row at the end of the prompt reads
//! are *pinned*: of all that lies behind, they are released last.

mod block_count;
mod block_pool;
mod nearest;

use std::ops::Range;

use girih_graph::backend::{Block, Range32};
use girih_graph::{BLOCK_POSITIONS, GroupId, StateKind};

pub use block_count::{blocks, blocks_of};
use block_pool::BlockPool;
pub use nearest::NearestPrompt;
use nearest::{EvictedPrompts, shared};

use crate::service::Tenant;

/// The tokens at the end of a prompt that the next turn may lack: the start of the reply's
/// message, and the marker that opens its thinking.
const OPENING: usize = 16;

/// The id of a sequence within its cache; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// A change to a group's state that must be made before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// Zero a block that is new to its sequence and may hold another one's values.
    Zero(GroupId, Block),
    /// Copy a block that other sequences continue to hold.
    Copy {
        /// The group of both blocks.
        group: GroupId,
        /// The shared block.
        from: Block,
        /// The block that replaces it in the sequence.
        to: Block,
    },
}

/// The blocks of all groups, free or held by sequences. `K` is what a position holds, such as a
/// token: sequences share state up to the first position whose keys differ.
#[derive(Debug)]
pub struct PrefixCache<K> {
    pools: Vec<BlockPool>,
    sequences: Vec<CachedSequence<K>>,
    /// Counts sequences begun and ended; orders sequences by age and by last use.
    clock: u64,
    totals: CacheTotals,
    evicted: EvictedPrompts<K>,
}

/// A sequence that has begun.
#[derive(Clone, Copy, Debug)]
pub struct BegunSequence {
    /// Its id.
    pub id: SequenceId,
    /// The number of first tokens of the prompt whose state it shares.
    pub shared: u32,
    /// The number of those that earlier sequences have.
    pub nearest: NearestPrompt,
}

/// What a prefix cache has done since it was made, of all tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTotals {
    /// Prompts that were looked up; one that is looked up again counts again.
    pub prompts: u64,
    /// Tokens of these prompts.
    pub tokens: u64,
    /// Those of these tokens whose state was found.
    pub hits: u64,
    /// Sequences of ended requests that were evicted because blocks were needed.
    pub evicted: u64,
}

/// A sequence and the tokens of it that have been run.
#[derive(Debug)]
struct CachedSequence<K> {
    id: SequenceId,
    tenant: Tenant,
    /// The tokens that have been run.
    tokens: Vec<K>,
    /// One block table per group.
    tables: Vec<BlockTable>,
    /// The number of tokens that it shared when it began.
    begun: usize,
    /// The number of its first tokens whose state is confirmed: it gave logits without NaN.
    confirmed: usize,
    /// The end of the last whole block of its prompt that the next turn of its conversation shares; its
    /// blocks are pinned. 0 for none.
    pin: usize,
    /// The source of the shared prefix, if its state was unconfirmed at that time.
    unconfirmed_source: Option<SequenceId>,
    /// The time of its last use if its request has ended.
    ended: Option<u64>,
    /// Copies of its carried values before a step whose last rows may be rejected.
    copies: Option<CarriedCopies>,
}

/// Copies of a sequence's carried values, which are else known at the ends of blocks only.
#[derive(Debug)]
struct CarriedCopies {
    /// The number of tokens that they are of.
    length: usize,
    /// The block of each group; `None` for a group that carries no value.
    blocks: Vec<Option<Block>>,
}

/// What a new sequence may share.
#[derive(Clone, Debug, Default)]
pub struct SharingRules<'a> {
    /// The tenant whose sequences it may share; it then belongs to this tenant.
    pub tenant: Tenant,
    /// Whether it may share only confirmed state.
    pub confirmed_only: bool,
    /// The mutual spans of its prompt, in order. It shares a span whole or not at all, because the
    /// state of a span's first position depends on its last one.
    pub spans: &'a [Range32],
}

/// Returns the start of the span that `length` positions would cut, else `length`.
pub fn before_span(spans: &[Range32], length: u32) -> u32 {
    let next = spans.partition_point(|span| span.end <= length);
    spans.get(next).map_or(length, |span| span.start.min(length))
}

/// A sequence's blocks of one group.
#[derive(Clone, Debug, Default)]
struct BlockTable {
    /// The blocks in order of position. Those before `first` that are not pinned have been released; their
    /// entries keep the indexes of the others.
    blocks: Vec<Block>,
    /// The index of the first block from which on all are held.
    first: usize,
    /// The indexes of blocks before `first` that are held, too.
    pinned: Range<usize>,
}

impl BlockTable {
    /// The blocks from `first` on.
    fn held(&self) -> &[Block] {
        &self.blocks[self.first..]
    }

    /// The indexes of all blocks that are held, with those that are pinned.
    fn held_indexes(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.pinned.clone().chain(self.first..self.blocks.len())
    }

    /// All blocks that are held.
    fn all_held(&self) -> impl DoubleEndedIterator<Item = Block> {
        self.held_indexes().map(|index| self.blocks[index])
    }

    /// As [`StateKind::resumes_at`], for what the table holds.
    fn resumes_at(&self, kind: StateKind, length: usize, to: usize) -> Option<usize> {
        let pinned_end = self.pinned.end * BLOCK_POSITIONS;
        let in_pinned = || kind.resumes_at(self.pinned.start, length, to.min(pinned_end));
        kind.resumes_at(self.first, length, to).or_else(|| in_pinned().filter(|_| !self.pinned.is_empty()))
    }

    /// The indexes of blocks that are or will be pinned for a row at `pin`.
    fn pins(&self, pool: &BlockPool, pin: usize) -> Range<usize> {
        let pins = pool.kind.first_block(pin)..pin / BLOCK_POSITIONS;
        if self.first <= pins.start { pins } else { self.first..self.first }
    }

    /// The index of the first block that rows from `position` on read.
    fn needed(&self, pool: &BlockPool, position: usize) -> usize {
        pool.kind.first_block(position).min(self.blocks.len())
    }

    /// The number of held blocks that those rows do not read, and that are not pinned for a row at `pin`.
    fn behind(&self, pool: &BlockPool, position: usize, pin: usize) -> usize {
        let (needed, pins) = (self.needed(pool, position), self.pins(pool, pin));
        pins.start.min(needed).saturating_sub(self.first) + needed.saturating_sub(pins.end)
    }
}

impl<K: Clone + PartialEq> PrefixCache<K> {
    /// Returns an empty cache; group `i` is of kind `kinds[i]` and has `blocks[i]` blocks.
    pub fn new(kinds: &[impl Copy + Into<StateKind>], blocks: &[u32]) -> PrefixCache<K> {
        assert_eq!(kinds.len(), blocks.len(), "a group has a kind and a number of blocks");
        let pools = kinds.iter().zip(blocks).map(|(kind, blocks)| BlockPool::new((*kind).into(), *blocks));
        let (pools, totals) = (pools.collect(), CacheTotals::default());
        PrefixCache { pools, sequences: Vec::new(), clock: 0, totals, evicted: EvictedPrompts::new() }
    }

    /// What the cache has done so far.
    pub fn totals(&self) -> CacheTotals {
        self.totals
    }

    /// The number of free blocks of each group.
    pub fn free(&self) -> Vec<usize> {
        self.pools.iter().map(BlockPool::free).collect()
    }

    /// The number of blocks of each group that sequences hold; the others are free.
    pub fn used(&self) -> Vec<usize> {
        self.blocks_of(|_| true)
    }

    /// The number of blocks of each group that sequences of requests hold; the others are free, or
    /// are freed when they are needed.
    pub fn in_use(&self) -> Vec<usize> {
        self.blocks_of(|sequence| sequence.ended.is_none())
    }

    /// The number of blocks of each group that those of the sequences hold.
    fn blocks_of(&self, counts: impl Fn(&CachedSequence<K>) -> bool) -> Vec<usize> {
        let used = self.pools.iter().enumerate().map(|(group, pool)| {
            let mut is_held = vec![false; pool.total()];
            let counted = self.sequences.iter().filter(|sequence| counts(sequence));
            let held = counted.flat_map(|sequence| sequence.tables[group].all_held());
            held.for_each(|block| is_held[block.0 as usize] = true);
            is_held.into_iter().filter(|held| *held).count()
        });
        used.collect()
    }

    /// Returns every sequence and the tokens that it has run, the oldest first.
    pub fn sequences(&self) -> impl Iterator<Item = (SequenceId, &[K])> {
        self.sequences.iter().map(|sequence| (sequence.id, sequence.tokens.as_slice()))
    }

    /// The tokens that a sequence has run.
    pub fn tokens(&self, id: SequenceId) -> &[K] {
        &self.sequences[self.find(id)].tokens
    }

    /// The number of tokens that a sequence has run.
    pub fn length(&self, id: SequenceId) -> u32 {
        self.sequences[self.find(id)].tokens.len() as u32
    }

    /// The blocks of a sequence, one list per group, as a step's `Sequence` takes them.
    pub fn sequence(&self, id: SequenceId) -> Vec<&[Block]> {
        self.sequences[self.find(id)].tables.iter().map(|table| table.blocks.as_slice()).collect()
    }

    /// The ended sequences whose state is confirmed, the least recently used first.
    pub fn ended(&self) -> Vec<SequenceId> {
        let is_confirmed = |one: &&CachedSequence<K>| one.confirmed == one.tokens.len();
        let ended = self.sequences.iter().filter(is_confirmed).filter_map(|one| Some((one.ended?, one.id)));
        let mut ended: Vec<_> = ended.collect();
        ended.sort();
        ended.into_iter().map(|(_, id)| id).collect()
    }

    /// The tenant of a sequence, and its tokens.
    pub fn content(&self, id: SequenceId) -> (&Tenant, &[K]) {
        let sequence = &self.sequences[self.find(id)];
        (&sequence.tenant, &sequence.tokens)
    }

    /// The blocks that a sequence holds: for each group, the index of the first one within the
    /// sequence, and the blocks from there on.
    pub fn held(&self, id: SequenceId) -> Vec<(usize, &[Block])> {
        let tables = &self.sequences[self.find(id)].tables;
        tables.iter().map(|table| (table.first, table.held())).collect()
    }

    /// Adds an ended sequence that has run `tokens`, whose state the caller writes into the blocks
    /// that it then holds. Of group `g`, it lacks the first `firsts[g]` blocks. Returns `None`, and
    /// changes nothing, if too few blocks are free, or if it lacks a block that its next row reads.
    pub fn restore(&mut self, tenant: Tenant, tokens: Vec<K>, firsts: &[usize]) -> Option<SequenceId> {
        let count = tokens.len().div_ceil(BLOCK_POSITIONS);
        let fits = |(pool, first): (&BlockPool, &usize)| {
            *first <= pool.kind.first_block(tokens.len()).min(count) && count - first <= pool.free()
        };
        if tokens.is_empty() || firsts.len() != self.pools.len() || !self.pools.iter().zip(firsts).all(fits) {
            return None;
        }
        let now = self.tick();
        let (id, length) = (SequenceId(now), tokens.len());
        let table = |(pool, &first): (&mut BlockPool, &usize)| {
            // The entries of released blocks only keep the indexes of the others.
            let mut blocks = vec![Block(0); first];
            blocks.extend((first..count).map(|_| pool.take()));
            BlockTable { blocks, first, pinned: 0..0 }
        };
        let tables = self.pools.iter_mut().zip(firsts).map(table).collect();
        let (begun, pin, unconfirmed_source, ended) = (0, 0, None, Some(now));
        let confirmed = length;
        self.sequences.push(CachedSequence {
            id,
            tenant,
            tokens,
            tables,
            begun,
            confirmed,
            pin,
            unconfirmed_source,
            ended,
            copies: None,
        });
        Some(id)
    }

    /// Begins a sequence that shares the longest cached prefix of `prompt`; returns the
    /// length of that prefix. It never includes the prompt's last token, whose logits
    /// are needed.
    pub fn begin(&mut self, prompt: &[K]) -> (SequenceId, u32) {
        self.begin_within(prompt, SharingRules::default())
    }

    /// As [`PrefixCache::begin`], but shares only what `rules` allow.
    pub fn begin_within(&mut self, prompt: &[K], rules: SharingRules<'_>) -> (SequenceId, u32) {
        let BegunSequence { id, shared, .. } = self.begin_reporting(prompt, rules);
        (id, shared)
    }

    /// As [`PrefixCache::begin_within`]; also tells how far earlier sequences have the prompt.
    pub fn begin_reporting(&mut self, prompt: &[K], rules: SharingRules<'_>) -> BegunSequence {
        let now = self.tick();
        let (found, held) = self.longest(prompt, &rules);
        let evicted = self.evicted.shared(&rules.tenant, prompt);
        let nearest = NearestPrompt { held: held as u32, evicted: evicted as u32 };
        let mut sequence = CachedSequence {
            id: SequenceId(now),
            tenant: rules.tenant,
            tokens: Vec::new(),
            tables: vec![BlockTable::default(); self.pools.len()],
            begun: 0,
            confirmed: 0,
            pin: prompt.len().saturating_sub(OPENING) / BLOCK_POSITIONS * BLOCK_POSITIONS,
            unconfirmed_source: None,
            ended: None,
            copies: None,
        };
        let mut shared = 0;
        if let Some((index, length)) = found {
            let source = &self.sequences[index];
            sequence.unconfirmed_source = (source.confirmed < source.tokens.len()).then_some(source.id);
            sequence.confirmed = source.confirmed.min(length);
            sequence.tokens.extend_from_slice(&prompt[..length]);
            sequence.tables = self.share(index, length, now);
            sequence.begun = length;
            shared = length;
        }
        self.sequences.push(sequence);
        let CacheTotals { prompts, tokens, hits, .. } = &mut self.totals;
        // Steps that are timed have none.
        *prompts += u64::from(!prompt.is_empty());
        *tokens += prompt.len() as u64;
        *hits += shared as u64;
        BegunSequence { id: SequenceId(now), shared: shared as u32, nearest }
    }

    /// Finds the sequence with the longest resumable prefix of `prompt` that `rules` allow, and
    /// that prefix's length; if several are equally long, the oldest sequence. Also returns the length of the
    /// longest prefix that one of the tenant's sequences has.
    fn longest(&self, prompt: &[K], rules: &SharingRules<'_>) -> (Option<(usize, usize)>, usize) {
        let may = |sequence: &CachedSequence<K>| {
            sequence.tenant == rules.tenant
                && (!rules.confirmed_only || sequence.confirmed == sequence.tokens.len())
        };
        let sequences = self.sequences.iter().enumerate().filter(|(_, sequence)| may(sequence));
        let mut held = 0;
        let lengths = sequences.map(|(index, sequence)| {
            let shared = shared(&sequence.tokens, prompt).min(prompt.len().saturating_sub(1));
            held = held.max(shared);
            Some((index, self.resumes_at(index, shared as u32, rules.spans)? as usize))
        });
        let resumable = lengths.flatten().filter(|(_, length)| *length > 0);
        let best = resumable.reduce(|best, next| if next.1 > best.1 { next } else { best });
        (best, held)
    }

    /// The last position, at most `to` and within no span, whose row finds in the blocks of a
    /// sequence all that it reads; `None` if there is no such position.
    fn resumes_at(&self, index: usize, to: u32, spans: &[Range32]) -> Option<u32> {
        let CachedSequence { tokens, tables, .. } = &self.sequences[index];
        let mut at = to;
        loop {
            let before = at;
            at = before_span(spans, at);
            for (pool, table) in self.pools.iter().zip(tables) {
                at = table.resumes_at(pool.kind, tokens.len(), at as usize)? as u32;
            }
            if at == before {
                return Some(at);
            }
        }
    }

    /// Adds a holder to the blocks that positions from `length` on read.
    fn share(&mut self, source: usize, length: usize, now: u64) -> Vec<BlockTable> {
        let source = &mut self.sequences[source];
        source.ended = source.ended.map(|_| now);
        let mut tables = source.tables.clone();
        for (pool, table) in self.pools.iter_mut().zip(&mut tables) {
            table.blocks.truncate(length.div_ceil(BLOCK_POSITIONS));
            (table.first, table.pinned) = (table.needed(pool, length), 0..0);
            table.held().iter().for_each(|block| pool.share(*block));
        }
        tables
    }

    /// Allocates blocks of its own to a sequence for the positions after those it has run,
    /// up to `end`. If blocks run short, those behind a window are released first, then
    /// ended sequences are evicted, then pinned blocks are released. Returns the changes to be made to the state, or
    /// `None` if the blocks still do not suffice; then all ended sequences were evicted.
    pub fn reserve(&mut self, id: SequenceId, end: u32) -> Option<Vec<StateChange>> {
        while !self.suffices(id, end) {
            if self.trim() {
                continue;
            }
            match self.evict() {
                Some(()) => self.totals.evicted += 1,
                None => self.unpin()?,
            }
        }
        let index = self.find(id);
        let CachedSequence { tokens, tables, .. } = &mut self.sequences[index];
        let mut changes = Vec::new();
        for (number, (pool, table)) in self.pools.iter_mut().zip(tables).enumerate() {
            let group = GroupId(number as u32);
            if let Some(from) = tail(table, tokens.len()).filter(|block| pool.shared(*block)) {
                let to = pool.take();
                pool.release(from);
                table.blocks[tokens.len() / BLOCK_POSITIONS] = to;
                changes.push(StateChange::Copy { group, from, to });
            }
            while table.blocks.len() < (end as usize).div_ceil(BLOCK_POSITIONS) {
                let block = pool.take();
                table.blocks.push(block);
                changes.push(StateChange::Zero(group, block));
            }
        }
        Some(changes)
    }

    /// Copies the carried values of a sequence, so that [`PrefixCache::rewind`] can step back to its present length
    /// although that is within a block. Returns the changes to be made to the state; none if the length is the end of a
    /// block, if nothing is carried, or if no block is free, as nothing is evicted for it.
    pub fn copy_carried(&mut self, id: SequenceId) -> Vec<StateChange> {
        self.drop_copies(id);
        let index = self.find(id);
        let CachedSequence { tokens, tables, copies, .. } = &mut self.sequences[index];
        let has_room = self.pools.iter().all(|pool| pool.kind != StateKind::Carried || pool.free() > 0);
        if !has_room || self.pools.iter().all(|pool| pool.kind != StateKind::Carried) {
            return Vec::new();
        }
        let (mut changes, mut blocks) = (Vec::new(), Vec::new());
        for (number, (pool, table)) in self.pools.iter_mut().zip(tables).enumerate() {
            let from = tail(table, tokens.len()).filter(|_| pool.kind == StateKind::Carried);
            let to = from.map(|from| {
                let to = pool.take();
                changes.push(StateChange::Copy { group: GroupId(number as u32), from, to });
                to
            });
            blocks.push(to);
        }
        if !changes.is_empty() {
            *copies = Some(CarriedCopies { length: tokens.len(), blocks });
        }
        changes
    }

    /// Releases the copies of a sequence's carried values.
    pub fn drop_copies(&mut self, id: SequenceId) {
        let index = self.find(id);
        if let Some(CarriedCopies { blocks, .. }) = self.sequences[index].copies.take() {
            let copies = self.pools.iter_mut().zip(blocks);
            copies.for_each(|(pool, block)| block.into_iter().for_each(|block| pool.release(block)));
        }
    }

    /// Puts the copies of carried values in the place of the values, if a sequence cannot step back to `to` without
    /// them, or only further than to their length. Then the sequence has that length.
    fn return_to_copies(&mut self, index: usize, to: u32, left: Option<u32>) -> Option<u32> {
        let sequence = &mut self.sequences[index];
        let (length, to) = (sequence.copies.as_ref()?.length, to as usize);
        if length > to || left.is_some_and(|left| left as usize >= length) {
            return None;
        }
        let CarriedCopies { blocks, .. } = sequence.copies.take()?;
        for ((pool, table), block) in self.pools.iter_mut().zip(&mut sequence.tables).zip(blocks) {
            let Some(block) = block else { continue };
            let own = &mut table.blocks[length / BLOCK_POSITIONS];
            pool.release(std::mem::replace(own, block));
        }
        Some(length as u32)
    }

    /// Whether each group has enough free blocks for a sequence to reach `end`, so that
    /// [`PrefixCache::reserve`] releases and evicts nothing.
    pub fn suffices(&self, id: SequenceId, end: u32) -> bool {
        let CachedSequence { tokens, tables, .. } = &self.sequences[self.find(id)];
        self.pools.iter().zip(tables).all(|(pool, table)| {
            let fresh = (end as usize).div_ceil(BLOCK_POSITIONS).saturating_sub(table.blocks.len());
            let copied = tail(table, tokens.len()).is_some_and(|block| pool.shared(block));
            fresh + usize::from(copied) <= pool.free()
        })
    }

    /// Releases the oldest block that is not pinned of the sequence that holds the most such blocks behind a
    /// window; `false` if no sequence holds one.
    fn trim(&mut self) -> bool {
        let groups = || 0..self.pools.len();
        let behind = |index: usize, group: usize| {
            let sequence = &self.sequences[index];
            sequence.tables[group].behind(&self.pools[group], sequence.tokens.len(), sequence.pin)
        };
        let tables = (0..self.sequences.len()).flat_map(|index| groups().map(move |group| (index, group)));
        let largest = tables.max_by_key(|(index, group)| behind(*index, *group));
        let Some((index, group)) = largest.filter(|(index, group)| behind(*index, *group) > 0) else {
            return false;
        };
        let (sequence, pool) = (&mut self.sequences[index], &mut self.pools[group]);
        let table = &mut sequence.tables[group];
        let pins = table.pins(pool, sequence.pin);
        if table.first == pins.start && !pins.is_empty() {
            (table.first, table.pinned) = (pins.end, pins);
        }
        pool.release(table.blocks[table.first]);
        table.first += 1;
        true
    }

    /// Releases the pinned blocks of the oldest sequence that has any; `None` if none has.
    fn unpin(&mut self) -> Option<()> {
        let pools = &self.pools;
        let has_pins = |sequence: &&mut CachedSequence<K>| {
            pools.iter().zip(&sequence.tables).any(|(pool, table)| {
                let behind = |pin| table.behind(pool, sequence.tokens.len(), pin);
                !table.pinned.is_empty() || behind(sequence.pin) < behind(0)
            })
        };
        let sequence = self.sequences.iter_mut().find(has_pins)?;
        sequence.pin = 0;
        for (pool, table) in self.pools.iter_mut().zip(&mut sequence.tables) {
            std::mem::take(&mut table.pinned).rev().for_each(|index| pool.release(table.blocks[index]));
        }
        Some(())
    }

    /// Evicts the ended sequence that was used least recently; `None` if none is left.
    fn evict(&mut self) -> Option<()> {
        let ended = self.sequences.iter().filter_map(|sequence| Some((sequence.ended?, sequence.id)));
        let (_, id) = ended.min()?;
        let CachedSequence { tenant, tokens, .. } = self.remove(id);
        self.evicted.add(tenant, tokens);
        Some(())
    }

    /// Records that a sequence has run `tokens` at its next positions.
    pub fn extend(&mut self, id: SequenceId, tokens: &[K]) {
        let index = self.find(id);
        self.sequences[index].tokens.extend_from_slice(tokens);
    }

    /// Records that the state of all tokens of a sequence is confirmed, because it gave
    /// logits without NaN.
    pub fn confirm(&mut self, id: SequenceId) {
        let index = self.find(id);
        let sequence = &mut self.sequences[index];
        sequence.confirmed = sequence.tokens.len();
        sequence.unconfirmed_source = None;
    }

    /// Steps a sequence back to its first `to` tokens, or to fewer if its state is not known there
    /// or if a span would be cut. Releases the blocks that lie wholly behind them, and returns the
    /// number of tokens that are left. Returns `None`, and changes nothing, if blocks were released
    /// that the next row reads.
    ///
    /// The other tokens' state stays in the block that contains the next position until it is
    /// written again; [`PrefixCache::reserve`] copies that block first if it is shared.
    ///
    /// # Panics
    /// When the sequence has fewer than `to` tokens.
    #[must_use]
    pub fn rewind(&mut self, id: SequenceId, to: u32, spans: &[Range32]) -> Option<u32> {
        let index = self.find(id);
        assert!(to as usize <= self.sequences[index].tokens.len(), "a sequence is stepped back, not forward");
        let known = self.resumes_at(index, to, spans);
        let left = self.return_to_copies(index, to, known).or(known)?;
        let (sequence, to) = (&mut self.sequences[index], left as usize);
        sequence.tokens.truncate(to);
        sequence.begun = sequence.begun.min(to);
        sequence.confirmed = sequence.confirmed.min(to);
        sequence.pin = sequence.pin.min(to / BLOCK_POSITIONS * BLOCK_POSITIONS);
        let count = to.div_ceil(BLOCK_POSITIONS);
        for (pool, table) in self.pools.iter_mut().zip(&mut sequence.tables) {
            let behind = table.held_indexes().filter(|index| *index >= count);
            behind.rev().for_each(|index| pool.release(table.blocks[index]));
            table.blocks.truncate(count);
            if table.first > pool.kind.first_block(to) {
                table.first = std::mem::take(&mut table.pinned).start;
            }
        }
        Some(left)
    }

    /// Whether this sequence shares state that no logits have confirmed yet.
    pub fn shares_unconfirmed(&self, id: SequenceId) -> bool {
        self.sequences[self.find(id)].unconfirmed_source.is_some()
    }

    /// Discards a sequence whose state may hold NaN, and the ended sequences that hold one
    /// of its blocks, except those of confirmed tokens, or may hold a copy. Returns the other sequences that do: they are in
    /// use, and the caller must discard them.
    #[must_use]
    pub fn invalidate(&mut self, id: SequenceId) -> Vec<SequenceId> {
        let CachedSequence { tables: invalid, confirmed, .. } = &self.sequences[self.find(id)];
        let shares = |sequence: &CachedSequence<K>| {
            let mut tables = sequence.tables.iter().zip(invalid);
            tables.any(|(own, invalid)| {
                // Blocks of confirmed tokens only have no NaN.
                let may = invalid.held_indexes().filter(|index| *index >= confirmed / BLOCK_POSITIONS);
                let may: Vec<Block> = may.map(|index| invalid.blocks[index]).collect();
                own.all_held().any(|block| may.contains(&block))
            })
        };
        // A sequence is younger than the one that it began from, so one pass finds all.
        let mut copies = vec![id];
        let mut affected = Vec::new();
        for sequence in &self.sequences {
            let copied = sequence.unconfirmed_source.is_some_and(|source| copies.contains(&source));
            if copied {
                copies.push(sequence.id);
            }
            if sequence.id == id || copied || shares(sequence) {
                affected.push((sequence.id, sequence.ended.is_some() || sequence.id == id));
            }
        }
        affected.iter().filter(|(_, unused)| *unused).for_each(|(id, _)| self.discard(*id));
        affected.into_iter().filter(|(_, unused)| !unused).map(|(id, _)| id).collect()
    }

    /// Ends a sequence. Its blocks stay held until they are needed; a sequence that has
    /// run no token of its own is discarded.
    pub fn end(&mut self, id: SequenceId) {
        self.drop_copies(id);
        let now = self.tick();
        let index = self.find(id);
        let sequence = &mut self.sequences[index];
        if sequence.tokens.len() == sequence.begun {
            self.discard(id);
            return;
        }
        sequence.ended = Some(now);
        let run = sequence.tokens.len().div_ceil(BLOCK_POSITIONS);
        for (pool, table) in self.pools.iter_mut().zip(&mut sequence.tables) {
            table.blocks.drain(run..).for_each(|block| pool.release(block));
        }
    }

    /// Releases all blocks of a sequence.
    pub fn discard(&mut self, id: SequenceId) {
        self.remove(id);
    }

    /// Releases all blocks of a sequence, and returns what is left of it.
    fn remove(&mut self, id: SequenceId) -> CachedSequence<K> {
        self.drop_copies(id);
        let index = self.find(id);
        let sequence = self.sequences.remove(index);
        for (pool, table) in self.pools.iter_mut().zip(&sequence.tables) {
            table.all_held().rev().for_each(|block| pool.release(block));
        }
        sequence
    }

    /// Evicts all ended sequences.
    pub fn forget(&mut self) {
        while self.evict().is_some() {}
    }

    fn find(&self, id: SequenceId) -> usize {
        self.sequences.binary_search_by_key(&id, |sequence| sequence.id).expect("the sequence is held")
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// The block into which the position `length` would be written, if it already holds
/// other positions.
fn tail(table: &BlockTable, length: usize) -> Option<Block> {
    let begun = !length.is_multiple_of(BLOCK_POSITIONS);
    table.blocks.get(length / BLOCK_POSITIONS).copied().filter(|_| begun)
}
