//! A replica: the engine's scheduler and prefix cache, with a step's time instead of a model.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use girih_engine::RequestId;
use girih_engine::cache::{PrefixCache, SequenceId};
use girih_engine::scheduler::{Demand, ScheduledRows, Scheduler, SchedulerLimits};
use girih_graph::{BLOCK_POSITIONS, Span};

use crate::fleet_simulation::workload::{BlockKey, Turn};

/// Sequences of a replica, and rows of a step: `girih serve --sequences 8 --chunk 128`.
const SEQUENCES: u32 = 8;
const ROWS: u32 = 128;

/// Blocks of a replica's KV cache: eight times the default context of 4,096 positions, 1 GiB in f16 for the shape of
/// Llama-3.2-1B.
pub const BLOCKS: u32 = 512;

/// Rows of a step and its time. Of the shape of Llama-3.2-1B in Q4_0 on two cores, docs/performance.md
/// has 51.2 tokens/s of one sequence, 371 of eight, and 611 of a prompt.
const STEP_TIMES: [(u32, Duration); 3] = [
    (1, Duration::from_micros(19_531)),
    (8, Duration::from_micros(21_563)),
    (128, Duration::from_micros(209_493)),
];

/// The time of a step, in a straight line between those of [`STEP_TIMES`].
fn step_time(rows: u32) -> Duration {
    let after = STEP_TIMES.partition_point(|(known, _)| *known < rows).max(1);
    let [(from, before), (to, time)] = [STEP_TIMES[after - 1], STEP_TIMES[after.min(STEP_TIMES.len() - 1)]];
    if rows <= from {
        return before;
    }
    before + (time - before) * (rows - from) / (to - from)
}

/// What a router learns of a replica.
#[derive(Clone, Copy, Debug)]
pub enum Happened {
    /// The cache has a block that it had not.
    Stored(BlockKey),
    /// The cache has a block no more.
    Removed(BlockKey),
    /// The first token of a reply was chosen.
    Begun { conversation: u32, wait: Duration },
    /// The last token of a reply was chosen.
    Ended { conversation: u32, at: Duration, time: Duration },
}

/// A request that is active or waits.
struct Running {
    turn: Turn,
    arrived: Duration,
    sequence: Option<SequenceId>,
    run: u32,
    known: u32,
}

pub struct Replica {
    scheduler: Scheduler,
    cache: PrefixCache<u32>,
    arrivals: VecDeque<(Duration, Turn)>,
    running: BTreeMap<RequestId, Running>,
    blocks: HeldBlocks,
    next: u64,
    now: Duration,
    /// The time of all steps.
    pub busy: Duration,
}

impl Replica {
    pub fn new() -> Replica {
        let limits = SchedulerLimits {
            sequences: SEQUENCES,
            rows: ROWS,
            output_rows: ROWS,
            waiting: u32::MAX,
            tenant_waiting: u32::MAX,
            groups: vec![(Span::Full.into(), BLOCKS)],
        };
        Replica {
            scheduler: Scheduler::new(limits),
            cache: PrefixCache::new(&[Span::Full], &[BLOCKS]),
            arrivals: VecDeque::new(),
            running: BTreeMap::new(),
            blocks: HeldBlocks::default(),
            next: 0,
            now: Duration::ZERO,
            busy: Duration::ZERO,
        }
    }

    /// Adds a request; they come in the order of their times.
    pub fn arrive(&mut self, at: Duration, turn: Turn) {
        self.arrivals.push_back((at, turn));
    }

    pub fn is_idle(&self) -> bool {
        self.arrivals.is_empty() && self.running.is_empty()
    }

    pub fn cache(&self) -> &PrefixCache<u32> {
        &self.cache
    }

    /// Runs the steps that begin before `end`; tells what happened.
    pub fn run_until(&mut self, end: Duration, happened: &mut Vec<Happened>) {
        loop {
            if self.running.is_empty() {
                let Some((at, _)) = self.arrivals.front() else { return };
                self.now = self.now.max(*at);
            }
            if self.now >= end {
                return;
            }
            while let Some((at, turn)) = self.arrivals.pop_front_if(|(at, _)| *at <= self.now) {
                self.submit(at, turn);
            }
            self.step(happened);
        }
    }

    fn submit(&mut self, arrived: Duration, turn: Turn) {
        let id = RequestId(self.next);
        self.next += 1;
        let max_positions = turn.prompt + turn.reply;
        let demand = Demand { prompt: turn.prompt, max_positions, ..Demand::default() };
        self.scheduler.submit(id, demand).expect("a conversation fits into the cache");
        self.running.insert(id, Running { turn, arrived, sequence: None, run: 0, known: turn.prompt });
    }

    /// As the engine's step: admits, schedules, reserves, runs, and chooses tokens.
    fn step(&mut self, happened: &mut Vec<Happened>) {
        while let Some(id) = self.scheduler.admit() {
            let one = self.running.get_mut(&id).expect("a waiting request is known");
            let (sequence, shared) = self.cache.begin(&one.turn.prompt_keys());
            (one.sequence, one.run) = (Some(sequence), shared);
            self.scheduler.begin(id, shared, one.known);
            self.blocks.grow(sequence, self.cache.tokens(sequence), happened);
        }
        let active = self.scheduler.active().to_vec();
        let scheduled = self.scheduler.step_rows(None);
        let evicted = self.cache.totals().evicted;
        for rows in &scheduled {
            let sequence = self.running[&active[rows.sequence]].sequence.expect("an active request has one");
            self.cache
                .reserve(sequence, rows.positions.end)
                .expect("admission left blocks for the worst case");
        }
        if self.cache.totals().evicted > evicted {
            self.blocks.compare(&self.cache, happened);
        }
        let time = step_time(scheduled.iter().map(ScheduledRows::count).sum());
        (self.now, self.busy) = (self.now + time, self.busy + time);
        for rows in scheduled {
            self.advance(active[rows.sequence], rows.positions.end, happened);
        }
    }

    /// Records that a request has run up to `end`.
    fn advance(&mut self, id: RequestId, end: u32, happened: &mut Vec<Happened>) {
        let one = self.running.get_mut(&id).expect("an active request is known");
        let sequence = one.sequence.expect("an active request has one");
        self.cache.extend(sequence, &one.turn.keys(one.run..end));
        if one.run as usize / BLOCK_POSITIONS < end as usize / BLOCK_POSITIONS {
            self.blocks.grow(sequence, self.cache.tokens(sequence), happened);
        }
        one.run = end;
        if one.run < one.known {
            self.scheduler.advance(id, one.run, one.known);
            return;
        }
        self.cache.confirm(sequence);
        one.known += 1;
        let Turn { conversation, prompt, reply, .. } = one.turn;
        let time = self.now - one.arrived;
        if one.known == prompt + 1 {
            happened.push(Happened::Begun { conversation, wait: time });
        }
        if one.known < prompt + reply {
            self.scheduler.advance(id, one.run, one.known);
            return;
        }
        happened.push(Happened::Ended { conversation, at: self.now, time });
        self.running.remove(&id);
        self.scheduler.end(id);
        self.cache.end(sequence);
    }
}

/// The whole blocks of the cache's sequences, so that a router is told what changes.
#[derive(Default)]
struct HeldBlocks {
    sequences: BTreeMap<SequenceId, Vec<BlockKey>>,
    /// The number of sequences that have each block.
    holders: HashMap<BlockKey, u32>,
}

impl HeldBlocks {
    /// A sequence has these keys now.
    fn grow(&mut self, sequence: SequenceId, keys: &[u32], happened: &mut Vec<Happened>) {
        let blocks = self.sequences.entry(sequence).or_default();
        for index in blocks.len()..keys.len() / BLOCK_POSITIONS {
            let block = BlockKey::of(keys, index);
            blocks.push(block);
            let holders = self.holders.entry(block).or_default();
            *holders += 1;
            if *holders == 1 {
                happened.push(Happened::Stored(block));
            }
        }
    }

    /// Sequences were evicted.
    fn compare(&mut self, cache: &PrefixCache<u32>, happened: &mut Vec<Happened>) {
        let mut present = cache.sequences().map(|(id, _)| id).peekable();
        self.sequences.retain(|id, blocks| {
            while present.next_if(|other| other < id).is_some() {}
            if present.peek() == Some(id) {
                return true;
            }
            for block in blocks {
                let holders = self.holders.get_mut(block).expect("a block of a sequence is counted");
                *holders -= 1;
                if *holders == 0 {
                    self.holders.remove(block);
                    happened.push(Happened::Removed(*block));
                }
            }
            false
        });
    }
}
