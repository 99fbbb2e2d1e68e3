//! The prefix cache: by examples, and with random operations against a model of the
//! memory that records what was written into each block.

use girih_tensor::{DType, Random, Shape};
use std::collections::{BTreeMap, BTreeSet};

use girih_engine::cache::{PrefixCache, SequenceId, StateChange, blocks, blocks_of};
use girih_graph::backend::{Block, Range32};
use girih_graph::{BLOCK_POSITIONS, Builder, GroupId, Key, OutputKind, Span, StateKind};

use crate::oracle::prompt;

const FULL: [Span; 2] = [Span::Full, Span::Full];

fn zero(group: u32, block: u32) -> StateChange {
    StateChange::Zero(GroupId(group), Block(block))
}

/// Returns a cache with one sequence that has run `tokens`.
fn holding(
    kinds: &[impl Copy + Into<StateKind>],
    counts: &[u32],
    tokens: &[u32],
) -> (PrefixCache<u32>, SequenceId) {
    let mut cache = PrefixCache::new(kinds, counts);
    let (id, _) = cache.begin(&[]);
    cache.reserve(id, tokens.len() as u32).expect("enough blocks");
    cache.extend(id, tokens);
    (cache, id)
}

#[test]
fn blocks_are_allocated_as_needed_and_released_at_the_end() {
    let mut cache = PrefixCache::new(&FULL, &[4, 3]);
    let (id, shared) = cache.begin(&prompt(1, 200));
    assert_eq!((shared, cache.free()), (0, vec![4, 3]));
    let changes = cache.reserve(id, 65).unwrap();
    assert_eq!(changes, [zero(0, 0), zero(0, 1), zero(1, 0), zero(1, 1)]);
    cache.extend(id, &prompt(1, 65));
    assert_eq!(cache.reserve(id, 128).unwrap(), [], "there is room already");
    assert_eq!(cache.reserve(id, 129).unwrap(), [zero(0, 2), zero(1, 2)]);
    assert_eq!(cache.sequence(id)[1], [Block(0), Block(1), Block(2)]);
    assert_eq!(cache.free(), [1, 0]);
    assert_eq!(cache.reserve(id, 200), None);
    cache.end(id);
    assert_eq!(cache.free(), [2, 1], "blocks that were reserved but not used are free");
    cache.forget();
    assert_eq!(cache.free(), [4, 3]);
    assert_eq!(cache.sequences().count(), 0);
}

#[test]
fn a_prompt_shares_blocks_and_copies_the_one_it_writes_into() {
    let held = prompt(2, 130);
    let cases: [(&[u32], u32); 4] = [(&held, 129), (&held[..65], 64), (&held[..1], 0), (&[], 0)];
    for (prompt, shared) in cases {
        let (mut cache, first) = holding(&[Span::Full], &[5], &held);
        let (second, found) = cache.begin(prompt);
        assert_eq!((found, cache.length(second)), (shared, shared));
        assert_eq!(cache.free(), [2], "sharing allocates no block");
        let copied = StateChange::Copy { group: GroupId(0), from: Block(2), to: Block(3) };
        let changes = cache.reserve(second, shared + 1).unwrap();
        assert_eq!(changes, if shared == 129 { [copied] } else { [zero(0, 3)] });
        assert_eq!(cache.sequence(first)[0], [Block(0), Block(1), Block(2)], "the first is as it was");
        cache.discard(first);
        cache.discard(second);
        assert_eq!(cache.free(), [5]);
    }
}

#[test]
fn a_block_whose_other_holder_was_evicted_needs_no_copy() {
    let held = prompt(3, 130);
    let (mut cache, first) = holding(&[Span::Full], &[3], &held);
    cache.end(first);
    let (second, shared) = cache.begin(&held);
    assert_eq!(shared, 129);
    assert_eq!(cache.reserve(second, 130).unwrap(), []);
    assert_eq!(cache.sequences().map(|(id, _)| id).collect::<Vec<_>>(), [second]);
    assert_eq!(cache.sequence(second)[0], [Block(0), Block(1), Block(2)]);
}

#[test]
fn the_longest_prefix_is_found_and_the_least_recently_used_is_evicted() {
    let mut cache = PrefixCache::new(&[Span::Full], &[6]);
    let prompts = [prompt(4, 100), prompt(5, 100), prompt(6, 100)];
    let ids = prompts.each_ref().map(|prompt| {
        let (id, _) = cache.begin(prompt);
        cache.reserve(id, 100).unwrap();
        cache.extend(id, prompt);
        cache.end(id);
        id
    });
    // After the first is used, the second is the least recently used one.
    let (again, shared) = cache.begin(&prompts[0]);
    assert_eq!(shared, 99);
    cache.reserve(again, 100).unwrap();
    let left: Vec<_> = cache.sequences().map(|(id, _)| id).collect();
    assert_eq!(left, [ids[0], ids[2], again]);
    cache.end(again);
    assert_eq!(cache.sequences().count(), 2, "it has run nothing of its own");
    assert_eq!(cache.begin(&prompts[1]).1, 0);
}

#[test]
fn blocks_behind_a_window_are_released_before_sequences_are_evicted() {
    let spans = [Span::Full, Span::Window(70)];
    let tokens = prompt(7, 330);
    let (mut cache, first) = holding(&spans, &[12, 6], &tokens[..300]);
    cache.end(first);
    assert_eq!(cache.free(), [7, 1], "no block is released before it is needed");
    let (second, shared) = cache.begin(&prompt(8, 10));
    cache.reserve(second, 180).unwrap();
    assert_eq!((shared, cache.free()), (0, vec![4, 0]));
    // Positions from 128 on are still held. The row at 300 sees positions from 231 on, the
    // row at 197 those from 128 on.
    let mut found = |length: usize| {
        let (id, found) = cache.begin(&tokens[..length]);
        cache.discard(id);
        found
    };
    assert_eq!([330, 300, 198, 197, 100].map(&mut found), [300, 299, 197, 0, 0]);
    // The second gets all blocks of the first except those of its last window.
    cache.extend(second, &prompt(8, 180));
    assert!(cache.reserve(second, 200).is_some());
    assert_eq!(cache.sequences().count(), 2);
    let (third, found) = cache.begin(&tokens);
    assert_eq!(found, 300);
    cache.discard(third);
}

#[test]
fn a_group_gets_blocks_for_its_window_and_a_step() {
    let key = |sequences, rows, context| Key {
        rows,
        sequences,
        context,
        output_rows: 1,
        output: OutputKind::Logits,
    };
    let cases = [
        (Span::Full, key(1, 512, 4096), 64),
        (Span::Full, key(8, 512, 4095), 512),
        (Span::Full, key(1, 1, 1), 1),
        (Span::Window(512), key(1, 512, 4096), 17),
        (Span::Window(512), key(1, 1, 4096), 9),
        (Span::Window(512), key(8, 512, 4096), 87),
        (Span::Window(512), key(8, 512, 512), 64),
        (Span::Window(1), key(1, 1, 4096), 1),
        (Span::Window(u32::MAX), key(2, 512, 4096), 128),
    ];
    for (span, key, need) in cases {
        assert_eq!(blocks(span, &key), need, "{span} {key}");
    }
}

/// The number of blocks computed for one sequence suffices at any length.
#[test]
fn the_blocks_for_a_window_suffice() {
    for window in [1, 2, 63, 64, 65, 66, 100, 128, 200] {
        for rows in [1, 2, 3, 62, 63, 64, 65, 100, 128, 130] {
            let key = Key { rows, sequences: 1, context: 2000, output_rows: 1, output: OutputKind::Logits };
            let span = Span::Window(window);
            let mut cache = PrefixCache::new(&[span], &[blocks(span, &key)]);
            let (id, _) = cache.begin(&[]);
            // Single rows before large steps give every offset within a block.
            let mut end = 0;
            while end < 2000 {
                let count = if end % 7 == 0 { 1 } else { rows };
                end += count;
                assert!(cache.reserve(id, end).is_some(), "window {window}, {rows} rows, up to {end}");
                cache.extend(id, &vec![0; count as usize]);
            }
        }
    }
}

#[test]
fn a_rewound_sequence_releases_whole_blocks_and_copies_a_shared_one() {
    let tokens = prompt(9, 200);
    let (mut cache, first) = holding(&FULL, &[8, 8], &tokens);
    let (second, shared) = cache.begin(&tokens);
    assert_eq!((shared, cache.free()), (199, vec![4, 4]));
    assert_eq!(cache.rewind(first, 130, &[]), Some(130));
    assert_eq!((cache.length(first), cache.free()), (130, vec![4, 4]), "the other one holds the last block");
    // It writes into the third block again, which the other one holds, too.
    let changes = cache.reserve(first, 131).unwrap();
    let copy = |group| StateChange::Copy { group: GroupId(group), from: Block(2), to: Block(4) };
    assert_eq!(changes, [copy(0), copy(1)]);
    assert_eq!(cache.rewind(first, 128, &[]), Some(128), "a whole number of blocks");
    assert_eq!(cache.free(), [4, 4], "its copy is free");
    assert_eq!(cache.reserve(first, 129).unwrap(), [zero(0, 4), zero(1, 4)]);
    assert_eq!(cache.rewind(first, 0, &[]), Some(0));
    assert_eq!(cache.sequence(first), [&[] as &[Block], &[]]);
    assert_eq!(cache.sequence(second)[0], [Block(0), Block(1), Block(2), Block(3)]);
    cache.discard(second);
    assert_eq!(cache.free(), [8, 8]);
}

#[test]
fn a_rewind_that_needs_released_blocks_is_refused() {
    let spans = [Span::Window(70)];
    let (mut cache, id) = holding(&spans, &[6], &prompt(10, 300));
    let (other, _) = cache.begin(&[]);
    cache.reserve(other, 100).expect("blocks behind the window");
    // Positions from 64 on are still held; the row at 133 sees positions from 64 on.
    assert_eq!(cache.free(), [0]);
    let before = cache.length(id);
    assert_eq!(cache.rewind(id, 132, &[]), None);
    assert_eq!(cache.length(id), before);
    assert_eq!(cache.rewind(id, 133, &[]), Some(133));
    assert_eq!((cache.length(id), cache.free()), (133, vec![2]));
}

#[test]
fn a_carried_value_is_resumed_at_the_end_of_a_block_or_of_its_sequence() {
    let tokens = prompt(11, 300);
    let (mut cache, first) = holding(&[StateKind::Carried], &[12], &tokens[..200]);
    let found = |cache: &mut PrefixCache<u32>, length: usize| {
        let (id, found) = cache.begin(&tokens[..length]);
        cache.discard(id);
        found
    };
    let lengths = [300, 201, 200, 193, 192, 65, 64];
    assert_eq!(lengths.map(|length| found(&mut cache, length)), [200, 200, 192, 192, 128, 64, 0]);
    // The block of the last value is copied before another sequence writes to it; a full one never is.
    let (second, _) = cache.begin(&tokens);
    let changes = cache.reserve(second, 201).unwrap();
    assert_eq!(changes, [StateChange::Copy { group: GroupId(0), from: Block(3), to: Block(4) }]);
    let (third, _) = cache.begin(&tokens[..193]);
    assert_eq!(cache.reserve(third, 193).unwrap(), [zero(0, 5)]);
    // Stepped back, a sequence is left with fewer tokens, and not within a span.
    let span = Range32 { start: 120, end: 130 };
    assert_eq!(cache.rewind(first, 200, &[span]), Some(200));
    assert_eq!(cache.rewind(first, 199, &[span]), Some(192));
    assert_eq!(cache.rewind(first, 191, &[span]), Some(64), "128 is within the span");
    assert_eq!(cache.rewind(first, 63, &[]), Some(0));
    cache.discard(third);
    cache.discard(second);
    assert_eq!(cache.free(), [12]);
}

#[test]
fn the_oldest_carried_values_are_released_when_blocks_run_short() {
    let tokens = prompt(12, 300);
    let (mut cache, first) = holding(&[StateKind::Carried], &[6], &tokens[..260]);
    let (other, _) = cache.begin(&[]);
    // Of the five blocks of the first, the next row reads the last one.
    cache.reserve(other, 150).expect("three blocks, of which two are released");
    assert_eq!(cache.free(), [0]);
    cache.discard(other);
    let found = [300, 260, 255, 191].map(|length| {
        let (id, found) = cache.begin(&tokens[..length]);
        cache.discard(id);
        found
    });
    assert_eq!(found, [260, 256, 192, 0]);
    assert_eq!(cache.rewind(first, 191, &[]), None, "128 was released");
    assert_eq!((cache.length(first), cache.rewind(first, 200, &[])), (260, Some(192)));
}

#[test]
fn the_state_at_the_end_of_a_prompt_is_released_last() {
    let tokens = prompt(14, 600);
    for (kind, blocks) in [(StateKind::Carried, 5), (StateKind::from(Span::Window(100)), 7)] {
        let mut cache = PrefixCache::new(&[kind], &[blocks]);
        // The prompt has 150 tokens, of which the next turn shares 130; the reply has 300.
        let (id, _) = cache.begin(&tokens[..150]);
        for end in (50..=450).step_by(50) {
            cache.reserve(id, end as u32).expect("blocks behind are released");
            cache.extend(id, &tokens[end - 50..end]);
        }
        cache.end(id);
        let mut next = tokens[..130].to_vec();
        next.extend(prompt(15, 40));
        let (turn, shared) = cache.begin(&next);
        assert_eq!(shared, 128, "{kind}");
        cache.discard(turn);
        // An active sequence keeps them unless its next rows need them.
        let (other, _) = cache.begin(&prompt(16, 400));
        assert!(cache.reserve(other, 64 * blocks).is_some(), "{kind}");
        assert_eq!(cache.begin(&next).1, 0, "{kind}");
    }
}

/// A model is loaded with what its steps need, and with values to go back to.
#[test]
fn sequences_keep_carried_values_up_to_a_maximum() {
    let key = |sequences, context, rows| Key {
        rows,
        sequences,
        context,
        output_rows: 1,
        output: OutputKind::Logits,
    };
    let count = |sequences, context, rows| blocks(StateKind::Carried, &key(sequences, context, rows));
    assert_eq!([count(1, 64, 1), count(1, 640, 64)], [1, 10], "all values");
    assert_eq!([count(1, 65536, 64), count(2, 65536, 512)], [2 + 1 + 32, 2 * (2 + 32) + 9]);
    // Large values are kept as far as 128 MiB suffice, but at least two.
    for (rows, kept) in [(1, 32), (1 << 8, 32), (1 << 10, 8), (1 << 16, 2)] {
        let mut builder = Builder::new(key(1, 65536, 64));
        builder.carried("small", Shape::matrix(1, 1));
        builder.carried("large", Shape::matrix(rows, (1 << 12) - 1));
        let x = builder.input("x", &[1], DType::F32);
        assert_eq!(blocks_of(&builder.finish(x)), [2 + 1 + kept], "{rows} rows of 16 KiB less 4 bytes");
    }
}

/// The contents of each block of a group: for each position, a hash of the whole text up
/// to it.
struct Memory {
    groups: Vec<Vec<[u64; BLOCK_POSITIONS]>>,
}

/// The content of the position that holds the last of `tokens`.
fn trace(tokens: &[u32]) -> u64 {
    let mix =
        |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A cache, its memory, and the expected tokens of each active sequence.
struct World {
    kinds: Vec<StateKind>,
    counts: Vec<u32>,
    cache: PrefixCache<u32>,
    memory: Memory,
    /// The active sequences and the tokens that each has run.
    live: BTreeMap<SequenceId, Vec<u32>>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let window = Span::Window(1 + random.below(150) as u32);
        let mut kinds: Vec<StateKind> = [Span::Full, window, Span::Window(1)].map(StateKind::from).into();
        kinds.push(StateKind::Carried);
        let counts = [10 + random.below(20), 6 + random.below(12), 4 + random.below(6), 4 + random.below(12)];
        let counts: Vec<u32> = counts.map(|count| count as u32).into();
        let groups = counts.iter().map(|count| vec![[0; BLOCK_POSITIONS]; *count as usize]).collect();
        let cache = PrefixCache::new(&kinds, &counts);
        World { kinds, counts, cache, memory: Memory { groups }, live: BTreeMap::new(), random }
    }

    fn any(&mut self) -> Option<SequenceId> {
        let ids: Vec<_> = self.live.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len())])
    }

    /// Returns a text; texts diverge at few positions, so that prefixes are shared.
    fn text(&mut self) -> Vec<u32> {
        let (story, parting) = (self.random.below(3) as u64, self.random.below(300));
        let mut text = prompt(story, parting);
        text.extend(prompt(10 + self.random.below(2) as u64, 1 + self.random.below(60)));
        text
    }

    fn begin(&mut self) {
        let text = self.text();
        let (id, shared) = self.cache.begin(&text);
        assert!((shared as usize) < text.len());
        self.live.insert(id, text[..shared as usize].to_vec());
    }

    /// Runs the next few tokens of a sequence, if there is room.
    fn run(&mut self, id: SequenceId) {
        let count = if self.random.once_in(3) { 1 + self.random.below(130) } else { 1 };
        let start = self.live[&id].len();
        let Some(changes) = self.cache.reserve(id, (start + count) as u32) else {
            let ended = self.cache.sequences().find(|(id, _)| !self.live.contains_key(id));
            assert_eq!(ended, None, "ended sequences are evicted first");
            return;
        };
        for change in changes {
            match change {
                StateChange::Zero(group, block) => {
                    self.memory.groups[group.0 as usize][block.0 as usize].fill(0)
                }
                StateChange::Copy { group, from, to } => {
                    let group = &mut self.memory.groups[group.0 as usize];
                    group[to.0 as usize] = group[from.0 as usize];
                }
            }
        }
        self.check_own(id, start, start + count);
        let text = self.text();
        let tokens: Vec<u32> = text.iter().cycle().skip(start).take(count).copied().collect();
        let whole = self.live.get_mut(&id).expect("it is live");
        for token in &tokens {
            whole.push(*token);
            let at = whole.len() - 1;
            for ((group, blocks), kind) in
                self.memory.groups.iter_mut().zip(self.cache.sequence(id)).zip(&self.kinds)
            {
                let slots = &mut group[blocks[at / BLOCK_POSITIONS].0 as usize];
                // A block of a carried group holds the value after the last row.
                slots[at % kind.rows_per_block()] = trace(whole);
            }
        }
        self.cache.extend(id, &tokens);
    }

    /// Checks that no other sequence, active or ended, sees a block that a sequence writes.
    fn check_own(&self, id: SequenceId, start: usize, end: usize) {
        let own = self.cache.sequence(id);
        for (other, tokens) in self.cache.sequences().filter(|(other, _)| *other != id) {
            for ((own, theirs), kind) in own.iter().zip(self.cache.sequence(other)).zip(&self.kinds) {
                let written = &own[start / BLOCK_POSITIONS..end.div_ceil(BLOCK_POSITIONS)];
                let seen = &theirs[kind.first_block(tokens.len()).min(theirs.len())..];
                assert!(
                    written.iter().all(|block| !seen.contains(block)),
                    "{id:?} writes a block that {other:?} sees"
                );
            }
        }
    }

    /// Checks that the memory holds what the next row of each sequence sees.
    fn check_memory(&self) {
        for (id, tokens) in self.cache.sequences() {
            if let Some(expected) = self.live.get(&id) {
                assert_eq!(tokens, expected);
            }
            let held = self.cache.held(id);
            for (index, kind) in self.kinds.iter().enumerate() {
                let (first, blocks) = held[index];
                for at in kind.first(tokens.len())..tokens.len() {
                    let block = blocks[at / BLOCK_POSITIONS - first].0 as usize;
                    let have = self.memory.groups[index][block][at % kind.rows_per_block()];
                    assert_eq!(have, trace(&tokens[..=at]), "{id:?} at {at}, which sees {kind}");
                }
                if *kind != StateKind::Carried {
                    continue;
                }
                // The values at the ends of blocks are kept.
                for (block, end) in blocks.iter().zip(1 + first..tokens.len() / BLOCK_POSITIONS + 1) {
                    let have = self.memory.groups[index][block.0 as usize][0];
                    assert_eq!(have, trace(&tokens[..end * BLOCK_POSITIONS]), "{id:?}, block {end}");
                }
            }
        }
    }

    /// Checks that no block that a sequence sees is free, and that no block is lost, not
    /// counting those behind windows.
    fn check_blocks(&self) {
        for (index, (free, count)) in self.cache.free().into_iter().zip(&self.counts).enumerate() {
            let mut seen = BTreeSet::new();
            let mut named = BTreeSet::new();
            for (id, tokens) in self.cache.sequences() {
                let blocks = self.cache.sequence(id)[index];
                let first = self.kinds[index].first_block(tokens.len());
                seen.extend(blocks[first.min(blocks.len())..].iter().copied());
                named.extend(blocks.iter().copied());
            }
            assert!(free + seen.len() <= *count as usize, "a block is free and used");
            assert!(free + named.len() >= *count as usize, "a block is neither free nor used");
        }
    }

    /// Steps a sequence back; what lies behind stays in memory until it is written again.
    fn rewind(&mut self, id: SequenceId) {
        let length = self.live[&id].len();
        let to = length - self.random.below(length.min(100) + 1);
        let held = self.cache.free();
        match self.cache.rewind(id, to as u32, &[]) {
            Some(left) => {
                let left = left as usize;
                assert!(left == to || left < to && left.is_multiple_of(BLOCK_POSITIONS));
                self.live.get_mut(&id).expect("it is live").truncate(left);
            }
            None => {
                assert_eq!((self.cache.length(id) as usize, self.cache.free()), (length, held), "as before");
            }
        }
    }

    fn act(&mut self) {
        match (self.random.below(10), self.any()) {
            (0..=1, _) | (_, None) if self.live.len() < 5 => self.begin(),
            (0..=6, Some(id)) => self.run(id),
            (7, Some(id)) if self.random.once_in(2) => self.rewind(id),
            (7..=8, Some(id)) => {
                self.live.remove(&id);
                self.cache.end(id);
            }
            (_, Some(id)) if self.random.once_in(3) => {
                self.live.remove(&id);
                self.cache.discard(id);
            }
            _ => {}
        }
    }
}

#[test]
fn random_operations_neither_lose_a_block_nor_use_it_twice() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.act();
            world.check_blocks();
            world.check_memory();
        }
        let ids: Vec<_> = world.live.keys().copied().collect();
        ids.into_iter().for_each(|id| world.cache.end(id));
        world.cache.forget();
        let all: Vec<usize> = world.counts.iter().map(|count| *count as usize).collect();
        assert_eq!(world.cache.free(), all, "all blocks are free");
    }
}
