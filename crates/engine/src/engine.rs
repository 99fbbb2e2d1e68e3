//! The step loop: schedule, run, sample, update requests. Synchronous and
//! single-threaded.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::{Duration, Instant};

use girih_graph::backend::{Range32, Unwatched};
use girih_graph::{BLOCK_POSITIONS, Outputs, Runner, StateKind};

use crate::cache::{BegunSequence, PrefixCache, SequenceId, SharingRules, before_span};
use crate::cached_runner::{CachedRunner, OutOfRange, StepTokens};
use crate::choose::{RequestOutcome, StepOutcome, read_rows, read_rows_in_range};
use crate::draft::{DraftSource, RowsWatch, measured};
use crate::hooks::guard;
use crate::limits::check;
use crate::live_request::LiveRequest;
use crate::pace::{Pace, PaceMeter, WorkLeft};
use crate::position_key::PositionKey;
use crate::result_rows::ResultRows;
use crate::row_work::PromptShare;
use crate::saved_prefix::SavedPrefix;
use crate::scheduler::{ExpiredRequest, Phase, ScheduledRows, Scheduler, SchedulerLimits};
use crate::{
    EngineLimits, Error, ErrorKind, EventKind, Hooks, RequestEvent, RequestId, Result, StepCosts, Stop,
    TokenRequest,
};

/// A loaded model and the requests that share it.
///
/// Requests are admitted in the order of the [`Scheduler`], as long as sequences and blocks of
/// state are available. An active request has blocks for all tokens that it may have, so it
/// never has to give way to another one.
///
/// A failure of one request ends that request only. If the model produced NaN, the
/// request's state is not used again, and active requests that share a part of it are
/// computed again without it. If the state cannot hold a key or value of a request, its sequence is discarded.
/// If the device failed, all requests of the step fail.
pub struct Engine {
    pub(crate) runner: CachedRunner,
    pub(crate) limits: EngineLimits,
    /// What drafts for requests without a drafter, and the maximum number of tokens of a draft.
    drafts: Option<(DraftSource, u32)>,
    /// The adapter of whatever names none.
    pub(crate) adapter: Option<u32>,
    /// The value whose rows the drafters of that source read.
    hidden: Option<Vec<String>>,
    /// The times of steps, by number of rows.
    costs: StepCosts,
    scheduler: Scheduler,
    /// Those that are active in the scheduler, in the same order.
    active: Vec<Active>,
    /// The requests that wait or are suspended.
    others: BTreeMap<RequestId, LiveRequest>,
    cancelled: Vec<LiveRequest>,
    events: Vec<RequestEvent>,
    pace: PaceMeter,
    /// The id of the next request.
    next: u64,
    /// The origin of the times of [`Engine::step_at`].
    origin: Instant,
}

/// A request that has been admitted, and its sequence.
struct Active {
    live: LiveRequest,
    sequence: SequenceId,
}

/// The rows of one sequence that a step runs.
struct PlannedRows {
    rows: ScheduledRows,
    /// The tokens of the rows if they run a draft: the request's last token, then the
    /// draft. Empty without a draft.
    draft_rows: Vec<u32>,
}

impl PlannedRows {
    fn output_rows(&self) -> u32 {
        self.rows.outputs.count(self.rows.count())
    }

    /// The rows that are kept if `used` rows of a draft were used: all but those of rejected tokens.
    fn kept(&self, used: u32) -> Range32 {
        match self.draft_rows.len() {
            0 => self.rows.positions,
            _ => Range32 { end: self.rows.positions.start + used, ..self.rows.positions },
        }
    }
}

impl Engine {
    /// Returns an engine for a loaded model.
    ///
    /// # Errors
    /// When the model does not map tokens to logits, or when its largest step or its
    /// state is too small for `limits`.
    pub fn new(runner: Box<dyn Runner>, limits: EngineLimits) -> Result<Engine> {
        check(&*runner, &limits)?;
        let repeats = runner.groups().iter().any(|group| group.kind == StateKind::Carried);
        let groups = runner.groups().iter().zip(runner.blocks()).map(|(group, have)| (group.kind, *have));
        let scheduler = Scheduler::new(SchedulerLimits {
            sequences: limits.sequences,
            rows: limits.chunk,
            output_rows: runner.max_key().output_rows,
            waiting: limits.waiting,
            tenant_waiting: limits.tenant_waiting,
            groups: groups.collect(),
        });
        Ok(Engine {
            runner: CachedRunner::new(runner)?,
            limits,
            drafts: None,
            adapter: None,
            hidden: None,
            costs: StepCosts::default().repeating(repeats),
            scheduler,
            active: Vec::new(),
            others: BTreeMap::new(),
            cancelled: Vec::new(),
            events: Vec::new(),
            pace: PaceMeter::default(),
            next: 0,
            origin: Instant::now(),
        })
    }

    /// Sets the adapter of requests that are submitted from now on and name none, and that of [`Engine::logits`] and
    /// [`Engine::last_logits`].
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when there is no such adapter beside the loaded model.
    pub fn set_adapter(&mut self, adapter: Option<u32>) -> Result<()> {
        crate::given_inputs::check_adapter(adapter, self.runner().inputs())?;
        self.adapter = adapter;
        Ok(())
    }

    /// Sets what drafts for requests that are submitted from now on without a drafter of their own.
    /// A draft has at most `max` tokens; [`TokenRequest::draft_max`] lowers that for a request.
    pub fn set_drafts(&mut self, source: DraftSource, max: u32) {
        self.hidden = source.reads();
        self.drafts = Some((source, max));
    }

    /// Times steps of one row to 16 rows, as far as the programs run them, and a step of what drafts. The length of
    /// drafts then follows these times, which no reply depends on. Returns the times, and that of a drafted token in
    /// steps of one row.
    ///
    /// # Errors
    /// When a request is active, or the device fails.
    pub fn measure_steps(&mut self) -> Result<(StepCosts, f32)> {
        self.require_idle("steps cannot be timed")?;
        let most = self.limits.chunk.min(self.runner().max_key().output_rows).min(self.limits.context);
        self.costs =
            measured(&mut self.runner, most, self.hidden.as_deref())?.repeating(self.costs.repeats());
        let drafted = match (&self.drafts, self.costs.one_row()) {
            (Some((source, _)), Some(step)) => source.measure(step)?,
            _ => 0.0,
        };
        Ok((self.costs.clone(), drafted))
    }

    /// The loaded model.
    pub fn runner(&self) -> &dyn Runner {
        self.runner.inner()
    }

    /// The bounds on requests.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The prefix cache.
    pub fn cache(&self) -> &PrefixCache<PositionKey> {
        &self.runner.cache
    }

    /// The number of active requests; the others wait or are suspended.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// The number of requests that wait; [`EngineLimits::waiting`] bounds it at submission.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// How fast its last steps were.
    pub fn pace(&self) -> Pace {
        self.pace.pace
    }

    /// The work that the active requests have left, the oldest request first.
    pub fn work_left(&self) -> impl Iterator<Item = WorkLeft> {
        self.scheduler.work_left()
    }

    /// Whether [`Engine::step`] would do nothing. Suspended requests do not count, but see
    /// [`Engine::until_deadline`].
    pub fn is_idle(&self) -> bool {
        self.scheduler.waiting() == 0 && self.active.is_empty() && self.cancelled.is_empty()
    }

    /// The time since the engine was made, which [`Engine::submit`] and [`Engine::step`] use.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The time until the next deadline of a request; a program that waits while the engine
    /// [is idle](Engine::is_idle) calls [`Engine::step`] after it.
    pub fn until_deadline(&self) -> Option<Duration> {
        self.scheduler.next_deadline().map(|deadline| deadline.saturating_sub(self.now()))
    }

    /// The number of adapters beside the loaded model.
    pub fn adapters(&self) -> u32 {
        crate::given_inputs::adapters(self.runner().inputs())
    }

    /// Queues a request, with the objects that the engine calls while it runs.
    ///
    /// # Errors
    /// As [`TokenRequest::check`]; of the kind [`ErrorKind::Refused`] when stop strings come
    /// without a detokenizer, and [`ErrorKind::QueueFull`] when [`EngineLimits::waiting`]
    /// requests wait, or [`EngineLimits::tenant_waiting`] of its tenant.
    pub fn submit(&mut self, request: TokenRequest, hooks: Hooks) -> Result<RequestId> {
        self.submit_at(request, hooks, self.now())
    }

    /// As [`Engine::submit`], at a time of the caller's clock, from which its time limits count.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_at(
        &mut self,
        mut request: TokenRequest,
        mut hooks: Hooks,
        now: Duration,
    ) -> Result<RequestId> {
        request.adapter = request.adapter.or(self.adapter);
        request.check(&self.limits, self.runner().width())?;
        crate::given_inputs::check(&request, self.runner().inputs())?;
        if hooks.detokenizer.is_none() && !request.stops.strings.is_empty() {
            let sentence = "stop strings need text, but this request has no detokenizer: \
                 remove the stop strings or keep the text";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if let (None, Some((source, max))) = (&hooks.drafter, &self.drafts) {
            let max = request.draft_max.map_or(*max, |asked| asked.min(*max));
            let is_shared = request.given.is_empty() && request.spans.is_empty() && request.adapter.is_none();
            hooks.drafter = (max > 0).then(|| source.drafter(max, &request.tenant, is_shared));
        }
        let id = RequestId(self.next);
        let live = LiveRequest::new(id, request, hooks, self.limits.context);
        self.scheduler.submit(id, live.demand(now))?;
        self.next += 1;
        self.others.insert(id, live);
        Ok(id)
    }

    /// Cancels a request, also between the chunks of its prompt; the next step returns its last
    /// event. Returns `false` if it has already ended. Its tokens stay in the prefix cache, as
    /// after any other end.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(phase) = self.scheduler.end(id) else { return false };
        let live = self.remove(id, phase);
        self.cancelled.push(live);
        true
    }

    /// Suspends a request: it gives up its place among the active requests, or in the
    /// queue, until [`Engine::resume`]. Its reply does not change; its state may stay in
    /// the prefix cache. Returns `false` if it has ended or is suspended.
    pub fn suspend(&mut self, id: RequestId) -> bool {
        let Some(phase) = self.scheduler.suspend(id) else { return false };
        let live = self.remove(id, phase);
        self.others.insert(id, live);
        true
    }

    /// Returns a suspended request to the queue, before all younger ones of its tenant. Returns
    /// `false` if it is not suspended.
    pub fn resume(&mut self, id: RequestId) -> bool {
        self.scheduler.resume(id)
    }

    /// Removes a request that left this phase; what an active one has run stays in the prefix
    /// cache.
    fn remove(&mut self, id: RequestId, phase: Phase) -> LiveRequest {
        if phase != Phase::Active {
            return self.others.remove(&id).expect("a request without a sequence is among the others");
        }
        let index = self.active.binary_search_by_key(&id, |active| active.live.id());
        let Active { live, sequence } = self.active.remove(index.expect("an active request has a sequence"));
        self.runner.cache.end(sequence);
        live
    }

    /// Evicts the tokens of ended requests from the prefix cache.
    ///
    /// # Errors
    /// When a request is active.
    pub fn forget(&mut self) -> Result<()> {
        self.require_idle("the prefix cache cannot be cleared")?;
        self.runner.cache.forget();
        Ok(())
    }

    /// Copies the state of cached prefixes, the most recently used first, until `each` returns
    /// `false`. Prefixes with given rows or mutual spans are left out.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the backend cannot export state.
    pub fn save_prefixes(&mut self, mut each: impl FnMut(SavedPrefix) -> bool) -> Result<()> {
        for id in self.runner.cache.ended().into_iter().rev() {
            if let Some(saved) = self.runner.export(id)?
                && !each(saved)
            {
                break;
            }
        }
        Ok(())
    }

    /// Adds a saved prefix to the prefix cache, as the most recently used one. The state must be
    /// that of the same model, computed by the same backend. Returns `false` if it does not fit
    /// into the context or into the free blocks, or has another shape; nothing is evicted.
    ///
    /// # Errors
    /// When the backend cannot import the state.
    pub fn restore_prefix(&mut self, saved: SavedPrefix) -> Result<bool> {
        let is_known = saved.tokens.iter().all(|id| (*id as usize) < self.runner().width());
        if !is_known || saved.tokens.len() > self.limits.context as usize {
            return Ok(false);
        }
        self.runner.import(saved)
    }

    /// Runs the model once, for all active requests, and returns the events.
    pub fn step(&mut self) -> &[RequestEvent] {
        self.step_at(self.now())
    }

    /// As [`Engine::step`], at a time of the caller's clock. Requests whose time limit has passed
    /// end first.
    pub fn step_at(&mut self, now: Duration) -> &[RequestEvent] {
        self.events.clear();
        self.events.extend(self.cancelled.drain(..).map(|live| live.finish(Stop::Cancelled)));
        for ExpiredRequest { id, phase, is_in_queue } in self.scheduler.expire(now) {
            let live = self.remove(id, phase);
            self.events.push(if is_in_queue { live.fail_in_queue() } else { live.finish(Stop::Deadline) });
        }
        self.admit();
        let started = Instant::now();
        let mut planned = self.plan();
        self.draft(&mut planned);
        if !planned.is_empty() {
            self.advance(&planned, started);
        }
        &self.events
    }

    /// Admits waiting requests. A prompt is looked up in the prefix cache only now, so that it
    /// finds the tokens of the prompts before it.
    fn admit(&mut self) {
        while let Some(id) = self.scheduler.admit() {
            let mut live = self.others.remove(&id).expect("a waiting request is among the others");
            let sequence = begin(&mut self.runner.cache, &mut self.scheduler, &mut live);
            let at = self.active.partition_point(|active| active.live.id() < id);
            self.active.insert(at, Active { live, sequence });
        }
    }

    /// Schedules the next step, and reserves blocks for it. A request whose blocks the device
    /// cannot prepare fails.
    fn plan(&mut self) -> Vec<PlannedRows> {
        loop {
            let mut scheduled = self.scheduler.step_rows(self.prompt_share());
            let mut failure = None;
            scheduled.retain(|rows| {
                if failure.is_none() {
                    match self.runner.reserve(self.active[rows.sequence].sequence, rows.positions.end) {
                        Ok(has_room) => assert!(has_room, "admission left blocks for the worst case"),
                        Err(error) => failure = Some((rows.sequence, error)),
                    }
                }
                failure.is_none()
            });
            let Some((index, error)) = failure else {
                return scheduled
                    .into_iter()
                    .map(|rows| PlannedRows { rows, draft_rows: Vec::new() })
                    .collect();
            };
            // Without this request, the others may have more rows.
            let Active { live, sequence } = self.active.remove(index);
            self.scheduler.end(live.id());
            self.runner.cache.discard(sequence);
            self.events.push(live.event(EventKind::Failed(error)));
        }
    }

    /// The most work of prompts beside replies: what earlier prompts did in the time of a step. `None` if no time is set or
    /// no prompt was timed.
    fn prompt_share(&self) -> Option<PromptShare> {
        let EngineLimits { row_work: row, step_time, .. } = self.limits;
        let most = self.pace.prompt_work_in(step_time?)?;
        Some(PromptShare { row, most })
    }

    /// Adds drafts to the rows of replies, as far as rows and output rows are left and
    /// blocks are free: a draft takes nothing from another sequence.
    fn draft(&mut self, planned: &mut [PlannedRows]) {
        let Engine { runner, limits, active, costs, .. } = self;
        let room = |PlannedRows { rows, .. }: &PlannedRows| match rows.outputs {
            // A step that runs rows again has no draft: if that were rejected, all of them would run a third time.
            Outputs::Last if rows.count() == 1 => active[rows.sequence].live.draft_room() as u32,
            _ => 0,
        };
        let rooms = planned.iter().map(room).enumerate().filter(|(_, room)| *room > 0);
        let drafters: Vec<(usize, u32)> = rooms.collect();
        if drafters.is_empty() {
            return;
        }
        let (width, max_outputs) = (runner.inner().width(), runner.inner().max_key().output_rows);
        let mut outputs: u32 = planned.iter().map(PlannedRows::output_rows).sum();
        let all_rows: u32 = planned.iter().map(|planned| planned.rows.count()).sum();
        let mut left = (limits.chunk - all_rows).min(max_outputs - outputs);
        for (done, (index, room)) in drafters.iter().enumerate() {
            let PlannedRows { rows, draft_rows } = &mut planned[*index];
            let Active { live, sequence } = &mut active[rows.sequence];
            let share = left.div_ceil((drafters.len() - done) as u32).min(*room);
            let max = runner.free_rows(*sequence, rows.positions.end, share);
            *draft_rows = if max > 0 { live.draft(max, all_rows - 1, width, costs) } else { Vec::new() };
            if let Some(drafted) = (draft_rows.len() as u32).checked_sub(1) {
                let reserved = runner.reserve(*sequence, rows.positions.end + drafted);
                let has_room =
                    reserved.and_then(|has_room| runner.copy_carried(*sequence).map(|()| has_room));
                match has_room {
                    Ok(has_room) => assert!(has_room, "the blocks are free"),
                    Err(error) => {
                        live.fail(error);
                        draft_rows.clear();
                        continue;
                    }
                }
                (left, outputs) = (left - drafted, outputs + drafted);
                rows.positions.end += drafted;
                rows.outputs = Outputs::LastN(drafted + 1);
            }
        }
    }

    /// Runs a step and updates its requests.
    fn advance(&mut self, planned: &[PlannedRows], started: Instant) {
        let step_tokens = planned.iter().map(|PlannedRows { rows, draft_rows }| {
            let Active { live, sequence } = &self.active[rows.sequence];
            let tokens =
                if draft_rows.is_empty() { &live.tokens[rows.positions.indexes()] } else { draft_rows };
            let content = live.content(rows.positions);
            StepTokens { sequence: *sequence, tokens, content, outputs: rows.outputs, hidden: &[] }
        });
        let pending: Vec<_> = step_tokens.collect();
        let reads_rows = planned.iter().any(|planned| self.active[planned.rows.sequence].live.reads_rows());
        let mut hidden = self.hidden.clone().filter(|_| reads_rows).map(RowsWatch::new);
        let run = || match &mut hidden {
            Some(watch) => self.runner.run(&pending, watch),
            None => self.runner.run(&pending, &mut Unwatched),
        };
        let out_of_range = match guard("the device", run).flatten() {
            Ok(out_of_range) => out_of_range,
            Err(error) => return self.fail(planned, &error),
        };
        let outcomes = self.choose_tokens(planned, &out_of_range);
        if let Some(watch) = hidden {
            self.pass_rows(planned, &outcomes, &watch.into_rows());
        }
        let time = started.elapsed();
        let of_prompts = planned.iter().zip(&outcomes).filter(|(_, outcome)| !outcome.was_replying);
        let row = self.limits.row_work;
        let (rows, work) = of_prompts.fold((0, 0_u64), |(rows, work), (planned, _)| {
            (rows + planned.rows.count(), work.saturating_add(row.of(planned.rows.positions)))
        });
        self.pace.count(time, rows, work);
        let mut settled = planned.iter().zip(outcomes).peekable();
        let mut invalid = Vec::new();
        for (index, active) in take(&mut self.active).into_iter().enumerate() {
            match settled.next_if(|(planned, _)| planned.rows.sequence == index) {
                None => self.active.push(active),
                Some((planned, step)) => {
                    invalid.extend(self.settle(active, planned, step, time));
                }
            }
        }
        // Also for a request that is computed again, so that it reports nothing twice.
        for Active { live, sequence } in &self.active {
            let run = self.runner.cache.length(*sequence);
            self.scheduler.advance(live.id(), run, live.tokens.len() as u32);
        }
        invalid.into_iter().for_each(|sequence| self.invalidate(sequence));
    }

    /// Reads the output rows of each sequence that has any, and chooses its next tokens.
    fn choose_tokens(&mut self, planned: &[PlannedRows], out_of_range: &[OutOfRange]) -> Vec<StepOutcome> {
        let Engine { runner, active, .. } = self;
        let mut next = 0;
        let choose = |(index, planned): (usize, &PlannedRows)| {
            let rows = next..next + planned.output_rows() as usize;
            next = rows.end;
            let live = &mut active[planned.rows.sequence].live;
            let first = planned.rows.positions.end - planned.output_rows();
            let draft_rows = &planned.draft_rows;
            match out_of_range.iter().find(|one| one.index == index) {
                None => read_rows(live, &mut ResultRows::new(runner.output(), rows), first, draft_rows),
                Some(OutOfRange { position, error, .. }) => {
                    // The rows of a mutual span see its later ones.
                    let position = before_span(live.spans(), *position);
                    let sound = rows.start..rows.start + position.saturating_sub(first) as usize;
                    let sound = &mut ResultRows::new(runner.output(), sound);
                    read_rows_in_range(live, sound, first, draft_rows, error.clone())
                }
            }
        };
        planned.iter().enumerate().map(choose).collect()
    }

    /// Passes hidden states of a step's rows to the drafters of the requests that go on. A backend that does not report
    /// them gives no rows.
    fn pass_rows(&mut self, planned: &[PlannedRows], outcomes: &[StepOutcome], values: &[f32]) {
        let all: usize = planned.iter().map(|planned| planned.rows.count() as usize).sum();
        let Some(width) = values.len().checked_div(all).filter(|width| *width > 0) else { return };
        let mut next = 0;
        for (planned, outcome) in planned.iter().zip(outcomes) {
            let PlannedRows { rows, .. } = planned;
            let count = planned.kept(outcome.used).indexes().len();
            let live = &mut self.active[rows.sequence].live;
            if count > 0 && outcome.outcome.is_none() && live.reads_rows() {
                live.read_rows(rows.positions.start, width, &values[next * width..][..count * width]);
            }
            next += rows.count() as usize;
        }
    }

    /// Counts a step of a request, passes its events on, and keeps it active unless it
    /// ends. Returns its sequence if that may hold NaN.
    fn settle(
        &mut self,
        mut active: Active,
        planned: &PlannedRows,
        mut step: StepOutcome,
        time: Duration,
    ) -> Option<SequenceId> {
        let live = &mut active.live;
        let positions = planned.kept(step.used);
        if let Some(drafted) = (planned.draft_rows.len() as u32).checked_sub(1) {
            live.stats.drafted += drafted;
            // No row was used if the state cannot hold the first one.
            live.stats.accepted += step.used.saturating_sub(1);
        }
        live.count(positions, step.was_replying, time);
        self.events.extend(take(&mut step.prompt_events).into_iter().map(|kind| live.event(kind)));
        if step.is_success()
            && let Some(event) = live.prefilled()
        {
            self.scheduler.begin_reply(live.id());
            self.events.push(event);
        }
        self.events.extend(step.events.into_iter().map(|kind| live.event(kind)));
        let outcome = match step.outcome {
            Some(RequestOutcome::Nan(_)) if self.runner.cache.shares_unconfirmed(active.sequence) => {
                // NaN may come from the sequence that it began from.
                live.needs_confirmed = true;
                self.requeue(active.live);
                return Some(active.sequence);
            }
            Some(RequestOutcome::Nan(error)) => {
                self.scheduler.end(live.id());
                self.events.push(live.event(EventKind::Failed(error)));
                return Some(active.sequence);
            }
            Some(RequestOutcome::OutOfRange(error)) => {
                self.scheduler.end(live.id());
                self.events.push(live.event(EventKind::Failed(error)));
                self.runner.cache.discard(active.sequence);
                return None;
            }
            outcome => outcome,
        };
        if step.used > 0 {
            self.runner.cache.confirm(active.sequence);
        }
        if positions.end < planned.rows.positions.end {
            self.step_back(&mut active, positions.end, step.rest_is_unsound);
        }
        self.runner.cache.drop_copies(active.sequence);
        self.keep_or_end(active, outcome);
        None
    }

    /// Keeps a request active, or ends it; its state stays in the prefix cache.
    fn keep_or_end(&mut self, mut active: Active, outcome: Option<RequestOutcome>) {
        match outcome {
            None => self.active.push(active),
            Some(RequestOutcome::Truncation) => {
                self.runner.cache.end(active.sequence);
                active.live.truncate();
                active.sequence = begin(&mut self.runner.cache, &mut self.scheduler, &mut active.live);
                self.active.push(active);
            }
            Some(RequestOutcome::Stop(stop)) => {
                self.scheduler.end(active.live.id());
                self.runner.cache.end(active.sequence);
                self.events.push(active.live.finish(stop));
            }
            Some(
                RequestOutcome::Failed(error)
                | RequestOutcome::Nan(error)
                | RequestOutcome::OutOfRange(error),
            ) => {
                self.scheduler.end(active.live.id());
                self.runner.cache.end(active.sequence);
                self.events.push(active.live.event(EventKind::Failed(error)));
            }
        }
    }

    /// Steps a sequence back to its first `to` tokens, behind which a draft was rejected, or to
    /// fewer, which are then computed again: the whole block of `to` if the draft's state is
    /// unsound, or what follows the last carried value that was kept.
    fn step_back(&mut self, active: &mut Active, to: u32, is_unsound: bool) {
        let to = if is_unsound { to - to % BLOCK_POSITIONS as u32 } else { to };
        if self.runner.cache.rewind(active.sequence, to, active.live.spans()).is_none() {
            self.runner.cache.discard(active.sequence);
            active.sequence = begin(&mut self.runner.cache, &mut self.scheduler, &mut active.live);
        }
    }

    /// Discards a sequence whose state may hold NaN. Active requests that share a part of
    /// it go back to the queue, to be computed again without it.
    fn invalidate(&mut self, sequence: SequenceId) {
        for affected in self.runner.cache.invalidate(sequence) {
            // Another sequence that may hold NaN is not active any more; it comes later.
            let index = self.active.iter().position(|active| active.sequence == affected);
            if let Some(index) = index {
                let Active { live, sequence } = self.active.remove(index);
                self.runner.cache.discard(sequence);
                self.requeue(live);
            }
        }
    }

    /// Returns a request whose sequence cannot be used to the queue.
    fn requeue(&mut self, mut live: LiveRequest) {
        live.count_requeue();
        self.scheduler.requeue(live.id());
        self.others.insert(live.id(), live);
    }

    /// Ends all requests of a step that failed on the device. The other active requests
    /// start again, because the state is undefined.
    fn fail(&mut self, planned: &[PlannedRows], error: &Error) {
        for (index, Active { live, sequence }) in take(&mut self.active).into_iter().enumerate() {
            self.runner.cache.discard(sequence);
            if planned.iter().any(|planned| planned.rows.sequence == index) {
                self.scheduler.end(live.id());
                self.events.push(live.event(EventKind::Failed(error.clone())));
            } else {
                self.requeue(live);
            }
        }
        self.runner.cache.forget();
    }

    /// Returns an error while a request is active.
    pub(crate) fn require_idle(&self, consequence: &str) -> Result<()> {
        match self.active.first() {
            None => Ok(()),
            Some(Active { live, .. }) => {
                let id = live.id().0;
                let sentence = format!("request {id} is active, so {consequence}; finish or cancel it");
                Err(Error::with_kind(ErrorKind::Refused, sentence))
            }
        }
    }
}

/// Begins a sequence for an active request.
fn begin(
    cache: &mut PrefixCache<PositionKey>,
    scheduler: &mut Scheduler,
    live: &mut LiveRequest,
) -> SequenceId {
    let rules = SharingRules {
        tenant: live.tenant().clone(),
        confirmed_only: live.needs_confirmed,
        spans: live.spans(),
    };
    // A sequence shares all but its last key at most.
    let count = scheduler.prompt_output(live.id()).map_or(live.tokens.len(), |first| first as usize + 1);
    let BegunSequence { id, shared, nearest } = cache.begin_reporting(&live.keys(count), rules);
    live.begin(shared, nearest);
    scheduler.begin(live.id(), shared, live.tokens.len() as u32);
    id
}
