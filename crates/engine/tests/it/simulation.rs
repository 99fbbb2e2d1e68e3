//! The engine under a virtual clock, over the model whose logits are a hash of all visible
//! tokens: random requests of several tenants and priorities, with drafts, time limits,
//! cancellations, suspensions, NaN and failures of the device. Each reply is compared with the
//! one that its request gets alone.
//!
//! Ten million events take some minutes:
//! `cargo test -p girih-engine --release --test it -- --ignored --nocapture ten_million_events`

use std::collections::BTreeMap;
use std::time::Duration;

use girih_engine::{
    DraftQuery, Drafter, Engine, ErrorKind, EventKind, Hooks, Priority, RequestId, Stop, Tenant, TimeLimits,
    TokenRequest, sample,
};
use girih_tensor::Random;

use crate::oracle::{
    self, CONTEXT, KINDS, SPANS, Trouble, VOCABULARY, Watched, prompt, random_narrow, request,
};

/// What happened. Each field but `rows` is a number of events.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    submitted: u64,
    refused: u64,
    admitted: u64,
    tokens: u64,
    cancelled: u64,
    suspended: u64,
    resumed: u64,
    deadlines: u64,
    failed: u64,
    finished: u64,
    steps: u64,
    rows: u64,
}

impl Counts {
    fn events(&self) -> u64 {
        let Counts { submitted, refused, admitted, tokens, cancelled, suspended, resumed, .. } = *self;
        let Counts { deadlines, failed, finished, steps, rows: _, .. } = *self;
        let begun = submitted + refused + admitted;
        begun + tokens + cancelled + suspended + resumed + deadlines + failed + finished + steps
    }

    fn add(&mut self, other: &Counts) {
        for (sum, count) in [
            (&mut self.submitted, other.submitted),
            (&mut self.refused, other.refused),
            (&mut self.admitted, other.admitted),
            (&mut self.tokens, other.tokens),
            (&mut self.cancelled, other.cancelled),
            (&mut self.suspended, other.suspended),
            (&mut self.resumed, other.resumed),
            (&mut self.deadlines, other.deadlines),
            (&mut self.failed, other.failed),
            (&mut self.finished, other.finished),
            (&mut self.steps, other.steps),
            (&mut self.rows, other.rows),
        ] {
            *sum += count;
        }
    }
}

/// Drafts random tokens.
struct Guess(Random);

impl Drafter for Guess {
    fn draft(&mut self, DraftQuery { max, .. }: DraftQuery<'_>) -> Vec<u32> {
        (0..self.0.below(max as usize + 1)).map(|_| self.0.below(VOCABULARY) as u32).collect()
    }
}

/// A request that has not ended.
struct Expected {
    /// The reply that it gets alone.
    reply: Vec<u32>,
    chosen: usize,
    /// The prompt, if its log-probabilities were asked for.
    scored: Option<Vec<u32>>,
    /// The number of tokens of the prompt that were reported.
    reported: usize,
    is_cancelled: bool,
    end_by: Option<Duration>,
}

struct World {
    random: Random,
    engine: Engine,
    watched: Watched,
    blocks: Vec<usize>,
    /// Whether the model carries a value besides its rows by position.
    carries: bool,
    now: Duration,
    live: BTreeMap<RequestId, Expected>,
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let carries = random.once_in(2);
        let (engine, watched, blocks) = if carries {
            let (engine, watched, blocks) = random_narrow(&mut random, KINDS);
            (engine, watched, blocks.to_vec())
        } else {
            let (engine, watched, blocks) = random_narrow(&mut random, SPANS);
            (engine, watched, blocks.to_vec())
        };
        let blocks = blocks.into_iter().map(|blocks| blocks as usize).collect();
        let (now, live, counts) = (Duration::ZERO, BTreeMap::new(), Counts::default());
        World { random, engine, watched, blocks, carries, now, live, counts }
    }

    /// Any live request.
    fn any(&mut self, times: usize) -> Option<RequestId> {
        let chosen = self.random.once_in(times) && !self.live.is_empty();
        chosen.then(|| *self.live.keys().nth(self.random.below(self.live.len())).expect("below its length"))
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        // Prompts of all tenants share prefixes.
        let mut tokens = prompt(random.below(3) as u64, random.below(160));
        tokens.extend(prompt(10 + random.below(1000) as u64, 1 + random.below(60)));
        let new = 1 + random.below(100.min(CONTEXT as usize - tokens.len()));
        let whole = random.once_in(8).then(|| Duration::from_millis(random.below(3000) as u64));
        let reply = oracle::greedy_of(&tokens, new, self.carries);
        let request = TokenRequest {
            tenant: Tenant::new(["a", "b", "c"][random.below(3)]),
            priority: Priority::ALL[random.below(3)],
            time_limits: TimeLimits { whole, ..TimeLimits::default() },
            prompt_logprobs: random.once_in(6).then_some(0),
            ..request(&tokens, new as u32)
        };
        let scored = request.prompt_logprobs.map(|_| tokens);
        let guess = Guess(Random(random.bits()));
        let drafter = random.once_in(3).then(|| Box::new(guess) as Box<dyn Drafter>);
        let hooks = Hooks { drafter, ..Hooks::default() };
        let id = self.engine.submit_at(request, hooks, self.now).expect("it fits");
        let end_by = whole.map(|whole| self.now + whole);
        self.live.insert(id, Expected { reply, chosen: 0, scored, reported: 0, is_cancelled: false, end_by });
        self.counts.submitted += 1;
    }

    fn disturb(&mut self) {
        if self.random.once_in(50) && self.submit_wrong() {
            self.counts.refused += 1;
        }
        if let Some(id) = self.any(25) {
            let expected = self.live.get_mut(&id).expect("it is live");
            assert_eq!(self.engine.cancel(id), !expected.is_cancelled);
            assert!(!self.engine.cancel(id), "it is cancelled once");
            self.counts.cancelled += u64::from(!expected.is_cancelled);
            expected.is_cancelled = true;
        }
        if let Some(id) = self.any(15) {
            self.counts.suspended += u64::from(self.engine.suspend(id));
        }
        if let Some(id) = self.any(5) {
            self.counts.resumed += u64::from(self.engine.resume(id));
        }
        if self.random.once_in(200) {
            let at = self.random.below(200) as u32;
            let trouble = [Trouble::NaN(at), Trouble::Device(at), Trouble::State(at)];
            self.watched.trouble.set(Some(self.random.of(&trouble)));
        }
    }

    /// Submits a request that exceeds the context.
    fn submit_wrong(&mut self) -> bool {
        let ask = request(&prompt(1, CONTEXT as usize), 1);
        self.engine.submit_at(ask, Hooks::default(), self.now).is_err()
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(20) as u64);
        let (admitted, rows) = (self.engine.scheduler().admitted(), self.watched.rows.get());
        let events = self.engine.step_at(self.now).to_vec();
        self.counts.steps += 1;
        self.counts.rows += (self.watched.rows.get() - rows) as u64;
        for event in events {
            let (now, counts) = (self.now, &mut self.counts);
            let expected = self.live.get_mut(&event.request).expect("nothing follows the last event");
            let is_late = expected.end_by.is_some_and(|end| end <= now);
            let is_over = expected.is_cancelled || is_late;
            match &event.kind {
                EventKind::PromptToken { id, logprobs } => {
                    assert!(!is_over && expected.chosen == 0);
                    let prompt = expected.scored.as_ref().expect("nobody asked for them");
                    let before = &prompt[..expected.reported];
                    assert_eq!(prompt.get(expected.reported), Some(id), "{:?}", event.request);
                    let plain = (!before.is_empty())
                        .then(|| sample::logprobs(&oracle::logits_of(before, self.carries), *id, 0));
                    assert_eq!(*logprobs, plain);
                    expected.reported += 1;
                    continue;
                }
                EventKind::Prefilled(_) => {
                    assert!(!is_over && expected.chosen == 0);
                    assert_eq!(expected.scored.as_ref().map_or(0, Vec::len), expected.reported);
                }
                EventKind::Token { id, .. } => {
                    assert!(!is_over, "no output after the end");
                    assert_eq!(expected.reply.get(expected.chosen), Some(id), "{:?}", event.request);
                    expected.chosen += 1;
                    counts.tokens += 1;
                    continue;
                }
                EventKind::Finished { stop, .. } => {
                    match stop {
                        Stop::Cancelled => assert!(expected.is_cancelled),
                        Stop::Deadline => assert!(is_late && !expected.is_cancelled),
                        Stop::Length => assert!(expected.chosen == expected.reply.len() && !is_over),
                        other => panic!("{other:?}"),
                    }
                    counts.deadlines += u64::from(*stop == Stop::Deadline);
                    counts.finished += u64::from(*stop == Stop::Length);
                }
                EventKind::Failed(error) => {
                    assert!([ErrorKind::NotANumber, ErrorKind::DeviceFailed].contains(&error.kind()));
                    counts.failed += 1;
                }
                EventKind::Logits(row) => panic!("nobody asked for {} logits", row.len()),
            }
            if !matches!(event.kind, EventKind::Prefilled(_)) {
                self.live.remove(&event.request);
            }
        }
        self.counts.admitted += self.engine.scheduler().admitted() - admitted;
        self.check_blocks();
    }

    /// Blocks are free or used, and the scheduler's reservations bound what active requests use.
    fn check_blocks(&self) {
        let (free, used) = (self.engine.cache().free(), self.engine.cache().used());
        for group in 0..self.blocks.len() {
            assert_eq!(free[group] + used[group], self.blocks[group], "free and used blocks");
        }
        let reserved: Vec<u64> = self.engine.scheduler().reserved().collect();
        assert!(reserved.iter().zip(&self.blocks).all(|(reserved, all)| *reserved <= *all as u64));
        assert_eq!(self.engine.scheduler().active().len(), self.engine.active());
    }

    /// Runs some steps of changing load, then all requests to their ends.
    fn simulate(mut self, steps: usize) -> Counts {
        for index in 0..steps {
            let load = [3, 8, 40][index / 100 % 3];
            if self.random.once_in(load) {
                self.submit();
            }
            self.disturb();
            self.step();
        }
        let ids: Vec<RequestId> = self.live.keys().copied().collect();
        ids.into_iter().for_each(|id| self.counts.resumed += u64::from(self.engine.resume(id)));
        while !self.engine.is_idle() {
            self.step();
        }
        assert!(self.live.is_empty(), "each request has its last event");
        self.engine.forget().unwrap();
        assert_eq!(self.engine.cache().free(), self.blocks, "no block is lost");
        self.counts
    }
}

/// Simulates one world after another until at least `events` have happened.
fn simulate(events: u64, steps: usize) -> Counts {
    let mut counts = Counts::default();
    for seed in 0.. {
        println!("seed {seed}");
        counts.add(&World::new(seed).simulate(steps));
        if counts.events() >= events {
            println!("{} events in {} worlds: {counts:?}", counts.events(), seed + 1);
            break;
        }
    }
    counts
}

#[test]
fn the_engine_keeps_its_promises() {
    let Counts { cancelled, suspended, deadlines, failed, .. } = simulate(60_000, 400);
    for (what, count) in
        [("cancelled", cancelled), ("suspended", suspended), ("late", deadlines), ("failed", failed)]
    {
        assert!(count > 20, "only {count} requests were {what}");
    }
}

#[test]
#[ignore = "minutes in a release build"]
fn ten_million_events_keep_the_promises_of_the_engine() {
    simulate(10_000_000, 4000);
}
