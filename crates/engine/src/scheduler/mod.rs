//! The scheduler: decides which requests run, and which rows of them the next step runs. It is
//! a state machine over numbers: it knows no tokens and no model, and it reads no clock.

mod fair_queue;
mod step_rows;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use girih_graph::StateKind;
use girih_graph::backend::Range32;

use crate::pace::WorkLeft;
use crate::request::RequestId;
use crate::row_work::PromptShare;
use crate::service::{Priority, Tenant};
use crate::{Error, ErrorKind, Result};

use fair_queue::FairQueue;
pub use step_rows::{ScheduledRows, SequenceProgress, StepBudget, schedule};

/// The number of admissions in a row by which higher priorities may pass over a lower one.
pub const MAX_PASSES: u32 = 8;

/// What requests share.
#[derive(Clone, Debug)]
pub struct SchedulerLimits {
    /// The maximum number of active requests.
    pub sequences: u32,
    /// The maximum number of rows of a step, at least `sequences`.
    pub rows: u32,
    /// The maximum number of output rows of a step, at least `sequences`.
    pub output_rows: u32,
    /// The maximum number of waiting requests at submission.
    pub waiting: u32,
    /// The maximum number of waiting requests of one tenant at submission.
    pub tenant_waiting: u32,
    /// The kind of each state group and its number of blocks.
    pub groups: Vec<(StateKind, u32)>,
}

/// What the scheduler knows about a request.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// The number of tokens of the prompt, at least 1.
    pub prompt: u32,
    /// The maximum number of positions that its sequence will have.
    pub max_positions: u32,
    /// Whether all rows of the prompt are output rows.
    pub prompt_outputs: bool,
    /// The mutual spans of the prompt, in order.
    pub spans: Vec<Range32>,
    /// To whom its tokens are charged.
    pub tenant: Tenant,
    /// Which waiting requests it precedes.
    pub priority: Priority,
    /// The time by which it must have been admitted for the first time.
    pub admit_by: Option<Duration>,
    /// The time by which the first token of its reply must have been chosen.
    pub first_token_by: Option<Duration>,
    /// The time by which it must have ended.
    pub end_by: Option<Duration>,
}

/// Which requests wait, run or are suspended.
///
/// **Admission.** A request is admitted if the blocks suffice for all active requests in the
/// worst case: the prompt and as many new tokens as it may have. So an active request never
/// lacks blocks, and none is preempted. One that can never fit is refused.
///
/// **Order.** A higher [`Priority`] goes first, but after [`MAX_PASSES`] admissions in a row
/// that passed over a lower one, that one is next. Within a priority, the tenant goes first
/// that was served the fewest tokens. These are the tokens that the model runs: those of a
/// prompt that were not in the prefix cache, charged at admission, and those of a reply, charged
/// when they are chosen. A tenant's own requests are admitted by age. If the next request does
/// not fit, no other is admitted before it.
///
/// **Waiting is bounded.** Let requests have at most `p` prompt tokens and `n` new ones, and let
/// `M = p + (sequences + 1) · n`. While a request waits, and `k` requests of its tenant and
/// priority are admitted, each other tenant is served at most `(k + 5) · M` tokens of that
/// priority. Of `MAX_PASSES + 3` admissions in a row, at least one has its priority. Each step
/// runs at least one token.
///
/// **Rows.** Each reply advances in each step; see [`schedule`]. So a long prompt delays
/// replies by at most one step of `rows` rows, or of a smaller [`PromptShare`].
///
/// **Time.** Times are durations since an origin that the caller chooses. A request that has
/// passed a deadline is returned by [`Scheduler::expire`], in any phase.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    requests: BTreeMap<RequestId, RequestState>,
    /// By priority, the lowest first.
    levels: [Level; Priority::ALL.len()],
    /// Ordered by age.
    active: Vec<RequestId>,
    deadlines: BTreeSet<(Duration, RequestId)>,
    admitted: u64,
}

/// The waiting requests of one priority.
#[derive(Debug, Default)]
struct Level {
    queue: FairQueue,
    /// The number of admissions that passed over this level since its last one.
    passes: u32,
}

/// A request that has not ended.
#[derive(Debug)]
struct RequestState {
    demand: Demand,
    phase: Phase,
    /// The number of its tokens that have been run.
    run: u32,
    /// The number of its tokens: the prompt and the tokens chosen since.
    known: u32,
    /// The largest number of its tokens that had been run at any time.
    reached: u32,
}

impl RequestState {
    /// The position of the first row of the prompt that is still needed as an output row; `None`
    /// if only the last one is.
    fn prompt_output(&self) -> Option<u32> {
        let reads_prompt = self.demand.prompt_outputs && self.known == self.demand.prompt;
        reads_prompt.then_some(self.reached)
    }

    /// The position of the first row that is still needed as an output row.
    fn first_output(&self) -> u32 {
        self.prompt_output().unwrap_or(self.known - 1)
    }

    /// The maximum number of rows that one step can run if it has this number of output rows.
    fn pending_rows(&self, output_rows: u32) -> u32 {
        let before_outputs = self.first_output().saturating_sub(self.run);
        (self.known - self.run).min(before_outputs.saturating_add(output_rows))
    }
}

impl Demand {
    fn deadlines(&self) -> impl Iterator<Item = Duration> + use<> {
        [self.admit_by, self.first_token_by, self.end_by].into_iter().flatten()
    }
}

/// A request that has passed a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredRequest {
    /// Its id.
    pub id: RequestId,
    /// The phase that it was in.
    pub phase: Phase,
    /// Whether the deadline is that of its admission alone.
    pub is_in_queue: bool,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for admission.
    Waiting,
    /// It has a sequence.
    Active,
    /// It waits for its caller.
    Suspended,
}

impl Scheduler {
    /// Returns a scheduler without requests.
    ///
    /// # Panics
    /// When a step has fewer rows or output rows than sequences.
    pub fn new(limits: SchedulerLimits) -> Scheduler {
        let least = limits.rows.min(limits.output_rows);
        assert!(least >= limits.sequences, "each sequence has a row and an output row in every step");
        Scheduler {
            limits,
            requests: BTreeMap::new(),
            levels: Default::default(),
            active: Vec::new(),
            deadlines: BTreeSet::new(),
            admitted: 0,
        }
    }

    /// Adds a request, which then waits.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if it never fits into the blocks, and [`ErrorKind::QueueFull`] if
    /// too many requests wait, of all tenants or of its own.
    ///
    /// # Panics
    /// When the id is in use.
    pub fn submit(&mut self, id: RequestId, demand: Demand) -> Result<()> {
        self.check(&demand)?;
        self.deadlines.extend(demand.deadlines().map(|deadline| (deadline, id)));
        let known = demand.prompt;
        let entry = RequestState { demand, phase: Phase::Suspended, run: 0, known, reached: 0 };
        assert!(self.requests.insert(id, entry).is_none(), "an id is used once");
        self.enqueue(id);
        Ok(())
    }

    /// Checks a request that is to be submitted now.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn check(&self, demand: &Demand) -> Result<()> {
        let alone = std::iter::once(demand.max_positions);
        for &(kind, have) in &self.limits.groups {
            let need = kind.worst_case(alone.clone(), self.limits.rows);
            if need > u64::from(have) {
                let sentence = format!(
                    "the request may take {need} blocks of state; the model has {have}: shorten the prompt, \
                     or request fewer tokens"
                );
                return Err(Error::with_kind(ErrorKind::Refused, sentence));
            }
        }
        let of_tenant = || self.levels.iter().map(|level| level.queue.waiting_of(&demand.tenant)).sum();
        let (waiting, all) = (self.waiting(), self.limits.waiting as usize);
        let sentence = if waiting >= all {
            format!("the queue is full: {waiting} requests wait; try again later")
        } else if self.limits.tenant_waiting != u32::MAX && of_tenant() >= self.limits.tenant_waiting as usize
        {
            let waiting: usize = of_tenant();
            format!("{waiting} requests of this tenant wait, which is the maximum; try again later")
        } else {
            return Ok(());
        };
        Err(Error::with_kind(ErrorKind::QueueFull, sentence))
    }

    /// The number of waiting requests, without suspended ones.
    pub fn waiting(&self) -> usize {
        self.levels.iter().map(|level| level.queue.waiting()).sum()
    }

    /// The active requests, the oldest first.
    pub fn active(&self) -> &[RequestId] {
        &self.active
    }

    /// The number of admissions so far.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Where a request is; `None` if it has ended.
    pub fn phase(&self, id: RequestId) -> Option<Phase> {
        self.requests.get(&id).map(|entry| entry.phase)
    }

    /// The number of blocks of each group that the active requests need in the worst case.
    pub fn reserved(&self) -> impl Iterator<Item = u64> {
        let lengths = || self.active.iter().map(|id| self.requests[id].demand.max_positions);
        self.limits.groups.iter().map(move |(kind, _)| kind.worst_case(lengths(), self.limits.rows))
    }

    /// The tokens that a tenant was served among the requests of a priority. Only differences
    /// between tenants that wait have a meaning.
    pub fn served(&self, priority: Priority, tenant: &Tenant) -> u64 {
        self.levels[priority as usize].queue.served(tenant)
    }

    /// Admits the next waiting request, unless it lacks a place, blocks or rows; the caller then
    /// calls [`Scheduler::begin`]. Requests without rows in the next step wait, so that they
    /// find the state of the prompts before them in the prefix cache.
    pub fn admit(&mut self) -> Option<RequestId> {
        if self.active.len() as u32 >= self.limits.sequences || self.pending_rows() >= self.limits.rows {
            return None;
        }
        let chosen = self.next_level()?;
        let id = self.levels[chosen].queue.next().expect("a request of this level waits");
        if !self.fits(self.requests[&id].demand.max_positions) {
            return None;
        }
        for (index, level) in self.levels.iter_mut().enumerate() {
            let is_passed = index != chosen && level.queue.waiting() > 0;
            level.passes = if is_passed { level.passes + 1 } else { 0 };
        }
        let entry = self.requests.get_mut(&id).expect("a waiting request is known");
        entry.phase = Phase::Active;
        let admit_by = entry.demand.admit_by.take();
        self.levels[chosen].queue.admit(&entry.demand.tenant, id);
        self.forget_deadline(id, admit_by);
        let at = self.active.partition_point(|other| *other < id);
        self.active.insert(at, id);
        self.admitted += 1;
        Some(id)
    }

    /// The level of the next admission: the highest one, unless another was passed over too
    /// often.
    fn next_level(&self) -> Option<usize> {
        let waiting = || (0..self.levels.len()).filter(|level| self.levels[*level].queue.waiting() > 0);
        let passes = |level: &usize| self.levels[*level].passes;
        waiting()
            .filter(|level| passes(level) >= MAX_PASSES)
            .max_by_key(passes)
            .or_else(|| waiting().next_back())
    }

    /// The number of rows that would run all known tokens, as far as one step has output rows for
    /// them.
    fn pending_rows(&self) -> u32 {
        let pending = |id: &RequestId| self.requests[id].pending_rows(self.limits.output_rows);
        self.active.iter().map(pending).fold(0, u32::saturating_add)
    }

    /// Whether the blocks suffice for a request beside the active ones.
    fn fits(&self, max_positions: u32) -> bool {
        let active = self.active.iter().map(|id| self.requests[id].demand.max_positions);
        let lengths = active.chain([max_positions]);
        let mut groups = self.limits.groups.iter();
        groups.all(|(kind, have)| kind.worst_case(lengths.clone(), self.limits.rows) <= u64::from(*have))
    }

    /// The position of the first row of a request's prompt that is still needed as an output row,
    /// so that only rows before it may come from the prefix cache; `None` if the last one alone is.
    pub fn prompt_output(&self, id: RequestId) -> Option<u32> {
        self.requests[&id].prompt_output()
    }

    /// Records that the sequence of an active request begins: `run` of its `known` tokens were in
    /// the prefix cache, none of them after [`Scheduler::prompt_output`]. The others are charged to its tenant.
    pub fn begin(&mut self, id: RequestId, run: u32, known: u32) {
        let first_output = self.prompt_output(id).unwrap_or(run);
        assert!(run <= first_output, "rows that are still needed as output rows are run");
        self.set(id, run, known);
        self.charge(id, known - run);
    }

    /// Records the progress of an active request after a step. New tokens are charged to its
    /// tenant.
    pub fn advance(&mut self, id: RequestId, run: u32, known: u32) {
        let before = self.requests[&id].known;
        self.set(id, run, known);
        self.charge(id, known.saturating_sub(before));
    }

    /// Records that the first token of an active request's reply was chosen.
    pub fn begin_reply(&mut self, id: RequestId) {
        let demand = &mut self.requests.get_mut(&id).expect("an active request is known").demand;
        let deadline = demand.first_token_by.take();
        self.forget_deadline(id, deadline);
    }

    /// Removes a deadline that a request has kept, unless another one of it is at the same time.
    fn forget_deadline(&mut self, id: RequestId, deadline: Option<Duration>) {
        if let Some(deadline) = deadline
            && self.requests[&id].demand.deadlines().all(|other| other != deadline)
        {
            self.deadlines.remove(&(deadline, id));
        }
    }

    fn set(&mut self, id: RequestId, run: u32, known: u32) {
        let entry = self.requests.get_mut(&id).expect("an active request is known");
        assert!(entry.phase == Phase::Active && run < known, "an active request has tokens left to run");
        assert!(known <= entry.demand.max_positions, "a request does not outgrow its blocks");
        (entry.run, entry.known) = (run, known);
        entry.reached = entry.reached.max(run);
    }

    fn charge(&mut self, id: RequestId, tokens: u32) {
        let demand = &self.requests[&id].demand;
        self.levels[demand.priority as usize].queue.charge(&demand.tenant, tokens);
    }

    /// The progress of the active requests, the oldest first.
    fn progress(&self) -> impl Iterator<Item = SequenceProgress<'_>> {
        self.active.iter().map(|id| {
            let state = &self.requests[id];
            let RequestState { demand, run, known, .. } = state;
            SequenceProgress {
                run: *run,
                known: *known,
                first_output: state.first_output(),
                spans: &demand.spans,
            }
        })
    }

    /// The work that the active requests have left, the oldest request first.
    pub fn work_left(&self) -> impl Iterator<Item = WorkLeft> {
        self.active.iter().map(|id| {
            let RequestState { demand, run, known, .. } = &self.requests[id];
            WorkLeft {
                request: *id,
                prompt_rows: demand.prompt.saturating_sub(*run),
                tokens: demand.max_positions - known,
            }
        })
    }

    /// The rows of the next step; their sequences are indexes into [`Scheduler::active`]. `prompts` bounds those of prompts
    /// beside replies.
    pub fn step_rows(&self, prompts: Option<PromptShare>) -> Vec<ScheduledRows> {
        let SchedulerLimits { rows, output_rows, .. } = self.limits;
        schedule(&self.progress().collect::<Vec<_>>(), StepBudget { rows, output_rows, prompts })
    }

    /// Removes a request that has ended or is cancelled; returns the phase that it was in, or
    /// `None` if it has ended before.
    pub fn end(&mut self, id: RequestId) -> Option<Phase> {
        let phase = self.leave(id)?;
        let entry = self.requests.remove(&id).expect("it was in this phase");
        for deadline in entry.demand.deadlines() {
            self.deadlines.remove(&(deadline, id));
        }
        if self.requests.is_empty() {
            self.levels.iter_mut().for_each(|level| level.queue.forget());
        }
        Some(phase)
    }

    /// Suspends a request that waits or is active; returns the phase that it was in.
    pub fn suspend(&mut self, id: RequestId) -> Option<Phase> {
        if self.phase(id)? == Phase::Suspended {
            return None;
        }
        self.leave(id)
    }

    /// Returns a suspended request to the queue. Returns `false` if it is not suspended.
    pub fn resume(&mut self, id: RequestId) -> bool {
        let is_suspended = self.phase(id) == Some(Phase::Suspended);
        if is_suspended {
            self.enqueue(id);
        }
        is_suspended
    }

    /// Returns an active request to the queue, because its sequence was discarded.
    pub fn requeue(&mut self, id: RequestId) {
        assert_eq!(self.leave(id), Some(Phase::Active), "an active request has a sequence");
        self.enqueue(id);
    }

    /// Takes a request out of the queue or of the active ones; it is then suspended. Returns the
    /// phase that it was in.
    fn leave(&mut self, id: RequestId) -> Option<Phase> {
        let entry = self.requests.get_mut(&id)?;
        let phase = std::mem::replace(&mut entry.phase, Phase::Suspended);
        match phase {
            Phase::Waiting => {
                let level = &mut self.levels[entry.demand.priority as usize];
                level.queue.remove(&entry.demand.tenant, id);
            }
            Phase::Active => {
                let index = self.active.binary_search(&id).expect("active requests are in order");
                self.active.remove(index);
            }
            Phase::Suspended => {}
        }
        Some(phase)
    }

    /// Adds a request to the queue of its priority.
    fn enqueue(&mut self, id: RequestId) {
        let entry = self.requests.get_mut(&id).expect("a queued request is known");
        entry.phase = Phase::Waiting;
        let level = &mut self.levels[entry.demand.priority as usize];
        if level.queue.waiting() == 0 {
            level.passes = 0;
        }
        level.queue.add(&entry.demand.tenant, id);
    }

    /// Removes the requests whose deadline is not after `now`, in order of their deadlines.
    pub fn expire(&mut self, now: Duration) -> Vec<ExpiredRequest> {
        let mut expired = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            let Demand { first_token_by, end_by, .. } = self.requests[&id].demand;
            let is_in_queue = ![first_token_by, end_by].contains(&Some(deadline));
            let phase = self.end(id).expect("a request that has a deadline is known");
            expired.push(ExpiredRequest { id, phase, is_in_queue });
        }
        expired
    }

    /// The next deadline of a request.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
