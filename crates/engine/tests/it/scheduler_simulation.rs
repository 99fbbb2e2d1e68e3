//! The scheduler alone, under a virtual clock: random requests of several tenants and
//! priorities arrive, are cancelled, suspended, resumed, requeued and expire, and the
//! invariants are checked after every step.
//!
//! 10⁸ events take a minute:
//! `cargo test -p girih-engine --release --test it -- --ignored --nocapture hundred_million_events`

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use girih_engine::scheduler::{
    Demand, ExpiredRequest, MAX_PASSES, Phase, ScheduledRows, Scheduler, SchedulerLimits,
};
use girih_engine::{ErrorKind, LEAST_PROMPT_ROWS, Priority, PromptShare, RequestId, RowWork, Tenant};
use girih_graph::{BLOCK_POSITIONS, Outputs, Span, StateKind};
use girih_tensor::Random;

const TENANTS: usize = 5;

/// What happened. Each field is a number of events.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    submitted: u64,
    refused: u64,
    admitted: u64,
    chunks: u64,
    tokens: u64,
    cancelled: u64,
    suspended: u64,
    resumed: u64,
    requeued: u64,
    expired: u64,
    finished: u64,
    /// The largest number of steps that a request waited; no event.
    longest_wait: u64,
}

impl Counts {
    fn events(&self) -> u64 {
        let Counts { submitted, refused, admitted, chunks, tokens, cancelled, .. } = *self;
        let Counts { suspended, resumed, requeued, expired, finished, .. } = *self;
        let moved = suspended + resumed + requeued;
        submitted + refused + admitted + chunks + tokens + cancelled + moved + expired + finished
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        for (sum, count) in [
            (&mut self.submitted, other.submitted),
            (&mut self.refused, other.refused),
            (&mut self.admitted, other.admitted),
            (&mut self.chunks, other.chunks),
            (&mut self.tokens, other.tokens),
            (&mut self.cancelled, other.cancelled),
            (&mut self.suspended, other.suspended),
            (&mut self.resumed, other.resumed),
            (&mut self.requeued, other.requeued),
            (&mut self.expired, other.expired),
            (&mut self.finished, other.finished),
        ] {
            *sum += count;
        }
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

/// A request that has not ended, as the simulation knows it.
struct Simulated {
    tenant: usize,
    level: usize,
    phase: Phase,
    run: u32,
    known: u32,
    /// The number of tokens at which its reply ends.
    end: u32,
    max_positions: u32,
    /// Whether all rows of its prompt are output rows.
    prompt_outputs: bool,
    /// The number of its first rows that have been output rows, if `prompt_outputs`.
    read: u32,
    admit_by: Option<Duration>,
    first_token_by: Option<Duration>,
    end_by: Option<Duration>,
    queued: Queued,
}

/// The counters of its level when a request began to wait.
#[derive(Clone, Copy, Default)]
struct Queued {
    step: u64,
    charged: [u64; TENANTS],
    admitted: [u64; TENANTS],
}

struct World {
    random: Random,
    limits: SchedulerLimits,
    scheduler: Scheduler,
    tenants: Vec<Tenant>,
    live: BTreeMap<RequestId, Simulated>,
    next: u64,
    now: Duration,
    step: u64,
    longest_prompt: usize,
    longest_reply: usize,
    /// The counters of each level; `passes` counts admissions in a row that passed over it.
    levels: [Queued; 3],
    passes: [u32; 3],
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let sequences = 1 + random.below(8) as u32;
        let blocks = 5 + random.below(40) as u32;
        let window = StateKind::from(Span::Window(1 + random.below(200) as u32));
        let rows = sequences + random.below(100) as u32;
        // At least what the longest request needs alone.
        let window_blocks = 8 + (rows + 62) / 64 + random.below(20) as u32;
        let limits = SchedulerLimits {
            sequences,
            rows,
            output_rows: sequences + random.below(20) as u32,
            waiting: 1 + random.below(40) as u32,
            tenant_waiting: if random.once_in(2) { u32::MAX } else { 1 + random.below(10) as u32 },
            groups: vec![
                (Span::Full.into(), blocks),
                (window, window_blocks),
                (StateKind::Carried, window_blocks),
            ],
        };
        let names = (0..TENANTS).map(|index| Tenant::new(&format!("tenant {index}")));
        World {
            longest_prompt: 1 + random.below(300),
            longest_reply: 1 + random.below(80),
            random,
            scheduler: Scheduler::new(limits.clone()),
            limits,
            tenants: names.collect(),
            live: BTreeMap::new(),
            next: 0,
            now: Duration::ZERO,
            step: 0,
            levels: Default::default(),
            passes: [0; 3],
            counts: Counts::default(),
        }
    }

    /// Any live request.
    fn any(&mut self) -> Option<RequestId> {
        let (first, last) = (self.live.first_key_value()?.0.0, self.live.last_key_value()?.0.0);
        let from = first + self.random.below((last - first + 1) as usize) as u64;
        self.live.range(RequestId(from)..).next().map(|(id, _)| *id)
    }

    fn submit(&mut self) {
        let prompt = 1 + self.random.below(self.longest_prompt) as u32;
        let new = 1 + self.random.below(self.longest_reply) as u32;
        // The first tenant asks for more than the others.
        let tenant = if self.random.once_in(2) { 0 } else { self.random.below(TENANTS) };
        let level = [1, 1, 0, 2][self.random.below(4)];
        let now = self.now;
        let mut limit = |times: usize, range: usize| {
            let limited = self.random.once_in(times);
            limited.then(|| now + Duration::from_millis(self.random.below(range) as u64))
        };
        let (admit_by, first_token_by, end_by) = (limit(8, 1000), limit(8, 2000), limit(8, 9000));
        let max_positions = prompt + new;
        let prompt_outputs = self.random.once_in(8);
        let demand = Demand {
            prompt,
            max_positions,
            prompt_outputs,
            spans: Vec::new(),
            tenant: self.tenants[tenant].clone(),
            priority: Priority::ALL[level],
            admit_by,
            first_token_by,
            end_by,
        };
        let id = RequestId(self.next);
        let waiting = self.scheduler.waiting() as u32;
        let own = self.live.values().filter(|one| one.phase == Phase::Waiting && one.tenant == tenant);
        let own = own.count() as u32;
        match self.scheduler.submit(id, demand) {
            Ok(()) => assert!(waiting < self.limits.waiting && own < self.limits.tenant_waiting),
            Err(error) if error.kind() == ErrorKind::QueueFull => {
                assert!(waiting >= self.limits.waiting || own >= self.limits.tenant_waiting);
                self.counts.refused += 1;
                return;
            }
            Err(_) => {
                let need = max_positions.div_ceil(BLOCK_POSITIONS as u32);
                assert!(need > self.limits.groups[0].1, "{need} blocks are available");
                self.counts.refused += 1;
                return;
            }
        }
        self.next += 1;
        self.counts.submitted += 1;
        // Some replies end before their maximum.
        let end = prompt + 1 + self.random.below(new as usize) as u32;
        let queued = self.queued(level);
        let phase = Phase::Waiting;
        let known = prompt;
        let one = Simulated {
            tenant,
            level,
            phase,
            run: 0,
            known,
            end,
            max_positions,
            prompt_outputs,
            read: 0,
            admit_by,
            first_token_by,
            end_by,
            queued,
        };
        self.live.insert(id, one);
    }

    fn queued(&self, level: usize) -> Queued {
        Queued { step: self.step, ..self.levels[level] }
    }

    /// Cancels, suspends, resumes or requeues some requests.
    fn disturb(&mut self) {
        if self.random.once_in(20)
            && let Some(id) = self.any()
        {
            assert_eq!(self.scheduler.end(id), self.live.remove(&id).map(|one| one.phase));
            assert_eq!(self.scheduler.end(id), None, "it ends once");
            self.counts.cancelled += 1;
            self.note_empty_levels();
        }
        if self.random.once_in(15)
            && let Some(id) = self.any()
        {
            let one = self.live.get_mut(&id).unwrap();
            let before = std::mem::replace(&mut one.phase, Phase::Suspended);
            let expected = (before != Phase::Suspended).then_some(before);
            assert_eq!(self.scheduler.suspend(id), expected);
            self.counts.suspended += u64::from(expected.is_some());
            self.note_empty_levels();
        }
        if self.random.once_in(6)
            && let Some(id) = self.any()
        {
            self.resume(id);
        }
        if self.random.once_in(30)
            && let Some(id) = self.any()
            && self.live[&id].phase == Phase::Active
        {
            self.scheduler.requeue(id);
            let queued = self.queued(self.live[&id].level);
            let one = self.live.get_mut(&id).unwrap();
            (one.phase, one.queued) = (Phase::Waiting, queued);
            self.counts.requeued += 1;
        }
    }

    fn resume(&mut self, id: RequestId) {
        let is_suspended = self.live[&id].phase == Phase::Suspended;
        assert_eq!(self.scheduler.resume(id), is_suspended);
        if is_suspended {
            let queued = self.queued(self.live[&id].level);
            let one = self.live.get_mut(&id).unwrap();
            (one.phase, one.queued) = (Phase::Waiting, queued);
            self.counts.resumed += 1;
        }
    }

    /// Exactly the requests that have passed a deadline end.
    fn expire(&mut self) {
        let late = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= self.now);
        let is_late = |one: &Simulated| [one.admit_by, one.first_token_by, one.end_by].into_iter().any(late);
        let count = self.live.values().filter(|one| is_late(one)).count();
        let expired = self.scheduler.expire(self.now);
        assert_eq!(expired.len(), count);
        for ExpiredRequest { id, phase, is_in_queue } in expired {
            let one = self.live.remove(&id).expect("it has not ended before");
            assert!(one.phase == phase && is_late(&one));
            assert!(!is_in_queue || late(one.admit_by), "it waits for its first admission");
            self.counts.expired += 1;
        }
        self.note_empty_levels();
    }

    /// A level without waiting requests is not passed over.
    fn note_empty_levels(&mut self) {
        for level in 0..self.passes.len() {
            if !self.waits(level) {
                self.passes[level] = 0;
            }
        }
    }

    fn waits(&self, level: usize) -> bool {
        self.live.values().any(|one| one.level == level && one.phase == Phase::Waiting)
    }

    fn admit(&mut self) {
        while let Some(id) = self.scheduler.admit() {
            self.check_wait(id);
            let one = self.live.get_mut(&id).expect("it has not ended");
            assert_eq!(std::mem::replace(&mut one.phase, Phase::Active), Phase::Waiting);
            one.admit_by = None;
            let is_read = !one.prompt_outputs || one.read == one.known - 1;
            let most = if is_read { one.known - 1 } else { one.read };
            one.run = self.random.below(most as usize + 1) as u32;
            self.scheduler.begin(id, one.run, one.known);
            let level = &mut self.levels[one.level];
            level.charged[one.tenant] += u64::from(one.known - one.run);
            level.admitted[one.tenant] += 1;
            self.counts.admitted += 1;
        }
        let waits = self.live.values().any(|one| one.phase == Phase::Waiting);
        assert!(!waits || !self.scheduler.active().is_empty(), "a request runs while any waits");
    }

    /// Checks the bounds of [`Scheduler`] on what other requests get while one waits.
    fn check_wait(&mut self, id: RequestId) {
        let one = &self.live[&id];
        let level = &self.levels[one.level];
        let before = level.admitted[one.tenant] - one.queued.admitted[one.tenant];
        let sequences = u64::from(self.limits.sequences);
        let most = self.longest_prompt as u64 + (sequences + 1) * self.longest_reply as u64;
        for tenant in (0..TENANTS).filter(|tenant| *tenant != one.tenant) {
            let served = level.charged[tenant] - one.queued.charged[tenant];
            assert!(served <= (before + 5) * most, "{served} tokens for another tenant, {before} before it");
        }
        self.counts.longest_wait = self.counts.longest_wait.max(self.step - one.queued.step);
        let chosen = one.level;
        for level in 0..self.passes.len() {
            let is_passed = level != chosen && self.waits(level);
            self.passes[level] = if is_passed { self.passes[level] + 1 } else { 0 };
            let passes = self.passes[level];
            assert!(passes <= MAX_PASSES + 2, "level {level} is passed over {passes} times");
        }
    }

    /// Checks that prompts beside replies keep to their share of work, but for the first rows of the oldest.
    fn check_share(&self, rows: &[ScheduledRows], share: Option<PromptShare>) {
        let is_reply = |id: &RequestId| self.live[id].known - self.live[id].run == 1;
        let active = self.scheduler.active();
        let Some(PromptShare { row, most }) = share.filter(|_| active.iter().any(is_reply)) else { return };
        let mut of_prompts = rows.iter().filter(|rows| !is_reply(&active[rows.sequence])).peekable();
        let exempt = of_prompts.next_if(|rows| rows.count() <= LEAST_PROMPT_ROWS);
        let work: u64 = of_prompts.map(|rows| row.of(rows.positions)).sum();
        let used = exempt.map_or(0, |rows| row.of(rows.positions));
        assert!(work <= most.saturating_sub(used), "{work} beside {used}, at most {most}");
        let oldest = active.iter().position(|id| !is_reply(id));
        let first = rows.iter().position(|rows| Some(rows.sequence) == oldest);
        assert_eq!(
            oldest.is_some(),
            first.is_some(),
            "the oldest prompt advances if the step has a row for it"
        );
    }

    /// Runs the rows of a step.
    fn run(&mut self) {
        // As an engine that measures steps, whose share changes with each.
        let share = self.random.once_in(2).then(|| PromptShare {
            row: RowWork {
                base: 1 + self.random.below(50) as u64,
                per_position: self.random.below(3) as u64,
            },
            most: self.random.below(4000) as u64,
        });
        let rows = self.scheduler.step_rows(share);
        self.check_share(&rows, share);
        let active = self.scheduler.active().to_vec();
        assert!(active.is_sorted() && active.len() <= self.limits.sequences as usize);
        assert_eq!(active.len(), self.live.values().filter(|one| one.phase == Phase::Active).count());
        assert!(rows.iter().map(|rows| rows.count()).sum::<u32>() <= self.limits.rows);
        let outputs = rows.iter().map(|rows| rows.outputs.count(rows.count()));
        assert!(outputs.sum::<u32>() <= self.limits.output_rows);
        assert_eq!(rows.is_empty(), active.is_empty(), "each step advances");
        let mut scheduled = rows.iter().peekable();
        let mut used = [0; 3];
        for (index, id) in active.into_iter().enumerate() {
            let one = self.live.get_mut(&id).expect("no request is run after its end");
            let rows = scheduled.next_if(|rows| rows.sequence == index);
            let end = one.run + rows.map_or(0, |rows| rows.count());
            for (used, (kind, _)) in used.iter_mut().zip(&self.limits.groups) {
                let first = kind.first_block(one.run as usize);
                *used += (end as usize).div_ceil(BLOCK_POSITIONS) - first;
            }
            let Some(rows) = rows else {
                assert!(one.known - one.run > 1, "each reply advances in each step");
                continue;
            };
            assert_eq!(rows.positions.start, one.run);
            self.counts.chunks += 1;
            one.run = rows.positions.end;
            if one.prompt_outputs {
                // Each row is an output row once.
                assert_eq!(rows.outputs.count(rows.count()), one.run.saturating_sub(one.read));
                one.read = one.read.max(one.run);
            }
            if one.run < one.known {
                assert!(one.prompt_outputs || rows.outputs == Outputs::None);
                self.scheduler.advance(id, one.run, one.known);
                continue;
            }
            assert_eq!(one.run, one.known);
            one.known += 1;
            self.counts.tokens += 1;
            if one.known >= one.end {
                assert_eq!(self.scheduler.end(id), Some(Phase::Active));
                self.live.remove(&id);
                self.counts.finished += 1;
                continue;
            }
            if self.random.once_in(50) {
                // A rejected draft: rows are run again.
                one.run -= self.random.below(one.run.min(20) as usize) as u32;
            }
            self.scheduler.advance(id, one.run, one.known);
            self.scheduler.begin_reply(id);
            one.first_token_by = None;
            self.levels[one.level].charged[one.tenant] += 1;
        }
        let reserved: Vec<u64> = self.scheduler.reserved().collect();
        for ((used, reserved), (_, all)) in used.into_iter().zip(reserved).zip(&self.limits.groups) {
            assert!(used <= *all as usize && reserved <= u64::from(*all), "{used} of {all} blocks are used");
        }
    }

    fn step(&mut self) {
        self.step += 1;
        self.now += Duration::from_millis(self.random.below(20) as u64);
        self.expire();
        self.admit();
        self.run();
    }

    /// Runs some steps of changing load, then all requests to their ends.
    fn simulate(mut self, steps: usize) -> Counts {
        for index in 0..steps {
            let load = [1, 2, 4, 30][index / 500 % 4];
            if self.random.once_in(load) {
                self.submit();
            }
            self.disturb();
            self.step();
        }
        while let Some((id, _)) = self.live.iter().find(|(_, one)| one.phase == Phase::Suspended) {
            self.resume(*id);
        }
        let left: u64 = self.live.values().map(|one| u64::from(one.max_positions)).sum();
        // Each step runs at least one row; a rejected draft repeats at most 20.
        for _ in 0..21 * left {
            if self.live.is_empty() {
                break;
            }
            self.step();
        }
        assert!(self.live.is_empty() && self.scheduler.waiting() == 0, "each request has ended");
        assert_eq!(self.scheduler.next_deadline(), None);
        let Counts { submitted, finished, cancelled, expired, .. } = self.counts;
        assert_eq!(submitted, finished + cancelled + expired, "each request ends once");
        self.counts
    }
}

/// Simulates one world after another until at least `events` have happened.
fn simulate(events: u64, steps: usize) -> Counts {
    let mut counts = Counts::default();
    for seed in 0.. {
        counts += World::new(seed).simulate(steps);
        if counts.events() >= events {
            println!("{} events in {} worlds: {counts:?}", counts.events(), seed + 1);
            break;
        }
    }
    counts
}

#[test]
fn the_scheduler_keeps_its_promises() {
    let counts = simulate(1_000_000, 3000);
    let Counts { refused, cancelled, suspended, requeued, expired, .. } = counts;
    for (what, count) in
        [("refused", refused), ("cancelled", cancelled), ("suspended", suspended), ("expired", expired)]
    {
        assert!(count > 1000, "only {count} requests were {what}");
    }
    assert!(requeued > 500, "only {requeued} requests were requeued");
}

#[test]
#[ignore = "a minute in a release build"]
fn hundred_million_events_keep_the_promises_of_the_scheduler() {
    simulate(100_000_000, 20_000);
}
