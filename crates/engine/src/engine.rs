//! The step loop: schedule, run, sample, update requests. Synchronous and
//! single-threaded.

use std::mem::take;
use std::time::{Duration, Instant};

use girih_graph::backend::Unwatched;
use girih_graph::{BLOCK_POSITIONS, InputKind, Outputs, Runner, Watch};

use crate::cache::{PrefixCache, SequenceId, SharingRules, before_span};
use crate::cached_runner::{CachedRunner, StepTokens, failed};
use crate::choose::{RequestOutcome, StepOutcome, choose_tokens_guarded};
use crate::draft::DraftSource;
use crate::hooks::guard;
use crate::limits::check;
use crate::live_request::LiveRequest;
use crate::position_key::PositionKey;
use crate::queue::Queue;
use crate::result_rows::ResultRows;
use crate::schedule::{ScheduledRows, SequenceProgress, schedule};
use crate::{
    EmbeddedRows, EngineLimits, Error, ErrorKind, EventKind, Hooks, RequestEvent, RequestId, Result, Stop,
    TokenRequest,
};

/// A loaded model and the requests that share it.
///
/// Requests are admitted in the order of submission, as long as sequences and blocks
/// of state are available. If blocks run out later, the youngest request is preempted:
/// it goes back to the queue with the tokens that it has generated. Its state is
/// recomputed when blocks are available again; its reply does not change.
///
/// A failure of one request ends that request only. If the model produced NaN, the
/// request's state is not used again, and active requests that share a part of it are
/// computed again without it. If the device failed, all requests of the step fail.
pub struct Engine {
    runner: CachedRunner,
    limits: EngineLimits,
    /// What drafts for requests without a drafter, and the maximum number of tokens of a draft.
    drafts: Option<(DraftSource, u32)>,
    queue: Queue,
    /// Ordered by age.
    active: Vec<Active>,
    cancelled: Vec<LiveRequest>,
    events: Vec<RequestEvent>,
    /// The id of the next request.
    next: u64,
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
}

impl Engine {
    /// Returns an engine for a loaded model.
    ///
    /// # Errors
    /// When the model does not map tokens to logits, or when its largest step or its
    /// state is too small for `limits`.
    pub fn new(runner: Box<dyn Runner>, limits: EngineLimits) -> Result<Engine> {
        check(&*runner, &limits)?;
        Ok(Engine {
            runner: CachedRunner::new(runner)?,
            limits,
            drafts: None,
            queue: Queue::default(),
            active: Vec::new(),
            cancelled: Vec::new(),
            events: Vec::new(),
            next: 0,
        })
    }

    /// Sets what drafts for requests that are submitted from now on without a drafter of their own.
    /// A draft has at most `max` tokens; [`TokenRequest::draft_max`] lowers that for a request.
    pub fn set_drafts(&mut self, source: DraftSource, max: u32) {
        self.drafts = Some((source, max));
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
        self.queue.waiting()
    }

    /// Whether [`Engine::step`] would do nothing. Suspended requests do not count.
    pub fn is_idle(&self) -> bool {
        self.queue.waiting() == 0 && self.active.is_empty() && self.cancelled.is_empty()
    }

    /// Queues a request, with the objects that the engine calls while it runs.
    ///
    /// # Errors
    /// As [`TokenRequest::check`]; of the kind [`ErrorKind::Refused`] when stop strings come
    /// without a detokenizer, and [`ErrorKind::QueueFull`] when
    /// [`EngineLimits::waiting`] requests wait.
    pub fn submit(&mut self, request: TokenRequest, mut hooks: Hooks) -> Result<RequestId> {
        request.check(&self.limits, self.runner().width())?;
        self.check_given(&request)?;
        if hooks.detokenizer.is_none() && !request.stops.strings.is_empty() {
            let sentence = "stop strings need text, but this request has no detokenizer: \
                 remove the stop strings or keep the text";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let waiting = self.queue.waiting();
        if waiting >= self.limits.waiting as usize {
            let sentence = format!("the queue is full: {waiting} requests wait; try again later");
            return Err(Error::with_kind(ErrorKind::QueueFull, sentence));
        }
        if let (None, Some((source, max))) = (&hooks.drafter, &self.drafts) {
            let max = request.draft_max.map_or(*max, |asked| asked.min(*max));
            hooks.drafter = (max > 0).then(|| source.drafter(max));
        }
        let id = RequestId(self.next);
        self.next += 1;
        self.queue.add(LiveRequest::new(id, request, hooks, self.limits.context));
        Ok(id)
    }

    /// Checks that the programs take given rows of these widths.
    fn check_given(&self, request: &TokenRequest) -> Result<()> {
        let width = self.runner().inputs().iter().find_map(|input| match input.kind {
            InputKind::Given { width } => Some(width),
            _ => None,
        });
        if request.given.is_empty() {
            return Ok(());
        }
        let width = width.ok_or_else(|| {
            refused("the request gives rows, but the loaded programs take tokens only; build the graph with given rows")
        })?;
        let need = |rows: &EmbeddedRows| (rows.rows as usize).checked_mul(width);
        match request.given.iter().find(|rows| need(rows) != Some(rows.values.len())) {
            None => Ok(()),
            Some(wrong) => {
                let (have, count) = (wrong.values.len(), wrong.rows);
                Err(refused(format!("{have} values were given for {count} rows; a row has {width}")))
            }
        }
    }

    /// Cancels a request; the next step returns its last event. Returns `false` if it has
    /// already ended. Its tokens stay in the prefix cache, as after any other end.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let live = self.stop(id).or_else(|| self.queue.remove_suspended(id));
        let found = live.is_some();
        self.cancelled.extend(live);
        found
    }

    /// Suspends a request: it gives up its place among the active requests, or in the
    /// queue, until [`Engine::resume`]. Its reply does not change; its state may stay in
    /// the prefix cache. Returns `false` if it has ended or is suspended.
    pub fn suspend(&mut self, id: RequestId) -> bool {
        let live = self.stop(id);
        let found = live.is_some();
        live.into_iter().for_each(|live| self.queue.add_suspended(live));
        found
    }

    /// Returns a suspended request to the queue, before all younger ones. Returns `false`
    /// if it is not suspended.
    pub fn resume(&mut self, id: RequestId) -> bool {
        let live = self.queue.remove_suspended(id);
        let found = live.is_some();
        live.into_iter().for_each(|live| self.queue.add(live));
        found
    }

    /// Removes a request that waits or is active; what an active one has run stays in the
    /// prefix cache.
    fn stop(&mut self, id: RequestId) -> Option<LiveRequest> {
        let index = self.active.iter().position(|active| active.live.id() == id);
        let Some(index) = index else { return self.queue.remove_waiting(id) };
        let Active { live, sequence } = self.active.remove(index);
        self.runner.cache.end(sequence);
        Some(live)
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

    /// Runs the model once, for all active requests, and returns the events.
    pub fn step(&mut self) -> &[RequestEvent] {
        self.events.clear();
        self.events.extend(self.cancelled.drain(..).map(|live| live.finish(Stop::Cancelled)));
        self.admit();
        let started = Instant::now();
        let mut planned = self.plan();
        self.draft(&mut planned);
        if !planned.is_empty() {
            self.advance(&planned, started);
        }
        &self.events
    }

    /// Admits waiting requests while this step has rows left. A prompt is looked up in the
    /// prefix cache only now, so that it finds the tokens of the prompts before it.
    fn admit(&mut self) {
        while (self.active.len() as u32) < self.limits.sequences && self.rows() < self.limits.chunk {
            if !self.queue.next().is_some_and(|live| self.fits(live)) {
                break;
            }
            let Some(mut live) = self.queue.take_next() else { break };
            let sequence = begin(&mut self.runner.cache, &mut live);
            // A resumed request may be older than active ones.
            let at = self.active.partition_point(|active| active.live.id() < live.id());
            self.active.insert(at, Active { live, sequence });
        }
    }

    /// The number of rows that would run all known tokens.
    fn rows(&self) -> u32 {
        self.progress().iter().map(|progress| progress.known - progress.run).fold(0, u32::saturating_add)
    }

    /// Whether the blocks suffice for a request beside the active ones. Alone it always
    /// fits, because its size was checked at submission.
    fn fits(&self, live: &LiveRequest) -> bool {
        let soon: Vec<_> = self.active.iter().map(|active| (active.sequence, active.live.soon())).collect();
        soon.is_empty() || self.runner.cache.admits(&soon, live.soon(), self.limits.chunk)
    }

    /// The progress of the active requests.
    fn progress(&self) -> Vec<SequenceProgress<'_>> {
        let progress = self.active.iter().map(|Active { live, sequence }| SequenceProgress {
            run: self.runner.cache.length(*sequence),
            known: live.tokens.len() as u32,
            spans: live.spans(),
        });
        progress.collect()
    }

    /// Schedules the next step, the oldest request first, and reserves blocks for it. A request
    /// whose blocks the device cannot prepare fails.
    fn plan(&mut self) -> Vec<PlannedRows> {
        loop {
            let mut scheduled = schedule(&self.progress(), self.limits.chunk);
            let mut failure = None;
            scheduled.retain(|rows| {
                while let (None, Some(Active { sequence, .. })) = (&failure, self.active.get(rows.sequence)) {
                    match self.runner.reserve(*sequence, rows.positions.end) {
                        Ok(true) => return true,
                        Ok(false) => self.preempt(),
                        Err(error) => failure = Some((rows.sequence, error)),
                    }
                }
                false
            });
            let Some((index, error)) = failure else {
                return scheduled
                    .into_iter()
                    .map(|rows| PlannedRows { rows, draft_rows: Vec::new() })
                    .collect();
            };
            // Without this request, the others may have more rows.
            let Active { live, sequence } = self.active.remove(index);
            self.runner.cache.discard(sequence);
            self.events.push(live.event(EventKind::Failed(error)));
        }
    }

    /// Preempts the youngest active request.
    fn preempt(&mut self) {
        let Active { mut live, sequence } = self.active.pop().expect("an active request lacks blocks");
        assert!(!self.active.is_empty(), "one sequence within the limits fits into the state");
        self.runner.cache.end(sequence);
        live.count_requeue();
        self.queue.add(live);
    }

    /// Adds drafts to the rows of replies, as far as rows and output rows are left and
    /// blocks are free: a draft takes nothing from another sequence.
    fn draft(&mut self, planned: &mut [PlannedRows]) {
        let Engine { runner, limits, active, .. } = self;
        let room = |PlannedRows { rows, .. }: &PlannedRows| match rows.outputs {
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
        let rows: u32 = planned.iter().map(|planned| planned.rows.count()).sum();
        let mut left = (limits.chunk - rows).min(max_outputs - outputs);
        for (done, (index, room)) in drafters.iter().enumerate() {
            let PlannedRows { rows, draft_rows } = &mut planned[*index];
            let Active { live, sequence } = &mut active[rows.sequence];
            let share = left.div_ceil((drafters.len() - done) as u32).min(*room);
            let max = runner.free_rows(*sequence, rows.positions.end, share);
            *draft_rows = if max > 0 { live.draft(max, width) } else { Vec::new() };
            if let Some(drafted) = (draft_rows.len() as u32).checked_sub(1) {
                match runner.reserve(*sequence, rows.positions.end + drafted) {
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
            StepTokens { sequence: *sequence, tokens, content, outputs: rows.outputs }
        });
        let pending: Vec<_> = step_tokens.collect();
        let run = || self.runner.run(&pending, &mut Unwatched);
        if let Err(error) = guard("the device", run).flatten() {
            return self.fail(planned, &error);
        }
        let outcomes = self.choose_tokens(planned);
        let time = started.elapsed();
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
        invalid.into_iter().for_each(|sequence| self.invalidate(sequence));
    }

    /// Chooses the next tokens of each sequence that has output rows.
    fn choose_tokens(&mut self, planned: &[PlannedRows]) -> Vec<StepOutcome> {
        let Engine { runner, active, .. } = self;
        let mut next = 0;
        let choose = |planned: &PlannedRows| {
            let rows = next..next + planned.output_rows() as usize;
            next = rows.end;
            let live = &mut active[planned.rows.sequence].live;
            choose_tokens_guarded(live, &mut ResultRows::new(runner.output(), rows), &planned.draft_rows)
        };
        planned.iter().map(choose).collect()
    }

    /// Counts a step of a request, passes its events on, and keeps it active unless it
    /// ends. Returns its sequence if that may hold NaN.
    fn settle(
        &mut self,
        mut active: Active,
        planned: &PlannedRows,
        step: StepOutcome,
        time: Duration,
    ) -> Option<SequenceId> {
        let live = &mut active.live;
        let mut positions = planned.rows.positions;
        if let Some(drafted) = (planned.draft_rows.len() as u32).checked_sub(1) {
            positions.end = positions.start + step.used;
            live.stats.drafted += drafted;
            live.stats.accepted += step.used - 1;
        }
        live.count(positions, step.was_replying, time);
        if step.is_success() {
            self.events.extend(live.prefilled());
        }
        self.events.extend(step.events.into_iter().map(|kind| live.event(kind)));
        let outcome = match step.outcome {
            Some(RequestOutcome::Nan(_)) if self.runner.cache.shares_unconfirmed(active.sequence) => {
                // NaN may come from the sequence that it began from.
                live.needs_confirmed = true;
                live.count_requeue();
                self.queue.add(active.live);
                return Some(active.sequence);
            }
            Some(RequestOutcome::Nan(error)) => {
                self.events.push(live.event(EventKind::Failed(error)));
                return Some(active.sequence);
            }
            outcome => outcome,
        };
        if step.used > 0 {
            self.runner.cache.confirm(active.sequence);
        }
        if positions.end < planned.rows.positions.end {
            self.step_back(&mut active, positions.end, step.rest_has_nan);
        }
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
                active.sequence = begin(&mut self.runner.cache, &mut active.live);
                self.active.push(active);
            }
            Some(RequestOutcome::Stop(stop)) => {
                self.runner.cache.end(active.sequence);
                self.events.push(active.live.finish(stop));
            }
            Some(RequestOutcome::Failed(error) | RequestOutcome::Nan(error)) => {
                self.runner.cache.end(active.sequence);
                self.events.push(active.live.event(EventKind::Failed(error)));
            }
        }
    }

    /// Steps a sequence back to its first `to` tokens, behind which a draft was rejected.
    /// If the draft's state may hold NaN, the whole block of `to` is computed again.
    fn step_back(&mut self, active: &mut Active, to: u32, has_nan: bool) {
        let to = if has_nan { to - to % BLOCK_POSITIONS as u32 } else { to };
        let to = before_span(active.live.spans(), to);
        if !self.runner.cache.rewind(active.sequence, to) {
            self.runner.cache.discard(active.sequence);
            active.sequence = begin(&mut self.runner.cache, &mut active.live);
        }
    }

    /// Discards a sequence whose state may hold NaN. Active requests that share a part of
    /// it go back to the queue, to be computed again without it.
    fn invalidate(&mut self, sequence: SequenceId) {
        for affected in self.runner.cache.invalidate(sequence) {
            // Another sequence that may hold NaN is not active any more; it comes later.
            let index = self.active.iter().position(|active| active.sequence == affected);
            if let Some(index) = index {
                let Active { mut live, sequence } = self.active.remove(index);
                self.runner.cache.discard(sequence);
                live.count_requeue();
                self.queue.add(live);
            }
        }
    }

    /// Ends all requests of a step that failed on the device. The other active requests
    /// start again, because the state is undefined.
    fn fail(&mut self, planned: &[PlannedRows], error: &Error) {
        for (index, Active { mut live, sequence }) in take(&mut self.active).into_iter().enumerate() {
            self.runner.cache.discard(sequence);
            if planned.iter().any(|planned| planned.rows.sequence == index) {
                self.events.push(live.event(EventKind::Failed(error.clone())));
            } else {
                live.count_requeue();
                self.queue.add(live);
            }
        }
        self.runner.cache.forget();
    }

    /// Runs `tokens` as one new sequence, in chunks, and passes each position with its
    /// logits, which may be NaN, to `each`. The sequence stays in the prefix cache.
    ///
    /// # Errors
    /// When a request is active, the tokens do not fit, or the device fails; then the
    /// sequence is discarded.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        watch: &mut dyn Watch,
        each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.alone(tokens, |engine, sequence| engine.read(sequence, tokens, watch, each))
    }

    /// As [`Engine::logits`], but computes only the logits that follow the last token, so
    /// chunks are as large as possible. Returns zeros if `tokens` is empty.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn last_logits(&mut self, tokens: &[u32], watch: &mut dyn Watch) -> Result<Vec<f32>> {
        self.alone(tokens, |engine, sequence| {
            let (mut end, all) = (0, tokens.len());
            for tokens in tokens.chunks(engine.limits.chunk as usize) {
                end += tokens.len();
                let room = engine.runner.reserve(sequence, end as u32)?;
                assert!(room, "one sequence within the limits fits into the state");
                let outputs = if end == all { Outputs::Last } else { Outputs::None };
                engine.runner.run(&[StepTokens::plain(sequence, tokens, outputs)], watch)?;
            }
            match all {
                0 => Ok(vec![0.0; engine.runner().width()]),
                _ => Ok(engine.runner.output().rows(0..1).map_err(failed)?.to_vec()),
            }
        })
    }

    /// Calls `run` with an empty sequence that has room for `tokens` while no request is
    /// active. The sequence stays in the prefix cache unless `run` fails.
    fn alone<T>(
        &mut self,
        tokens: &[u32],
        run: impl FnOnce(&mut Engine, SequenceId) -> Result<T>,
    ) -> Result<T> {
        self.require_idle("no other sequence can be run")?;
        if tokens.len() > self.limits.context as usize {
            let (have, max) = (tokens.len(), self.limits.context);
            let sentence = format!("the text has {have} tokens; the context is {max}: split it into windows");
            return Err(Error::with_kind(ErrorKind::TooLong, sentence));
        }
        self.runner.cache.forget();
        let (sequence, _) = self.runner.cache.begin(&[]);
        let result = run(self, sequence);
        match result {
            Ok(_) => self.runner.cache.end(sequence),
            Err(_) => self.runner.cache.discard(sequence),
        }
        result
    }

    /// Runs `tokens` in chunks of at most the programs' number of output rows.
    fn read(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        watch: &mut dyn Watch,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (chunk, width) =
            (self.limits.chunk.min(self.runner().max_key().output_rows), self.runner().width());
        let mut position = 0;
        for tokens in tokens.chunks(chunk as usize) {
            let end = (position + tokens.len()) as u32;
            let room = self.runner.reserve(sequence, end)?;
            assert!(room, "one sequence within the limits fits into the state");
            self.runner.run(&[StepTokens::plain(sequence, tokens, Outputs::All)], watch)?;
            let rows = self.runner.output().rows(0..tokens.len()).map_err(failed)?;
            for row in rows.chunks_exact(width) {
                each(position, row);
                position += 1;
            }
        }
        Ok(())
    }

    /// Returns an error while a request is active.
    fn require_idle(&self, consequence: &str) -> Result<()> {
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

/// Begins a sequence for a request.
fn begin(cache: &mut PrefixCache<PositionKey>, live: &mut LiveRequest) -> SequenceId {
    let rules = SharingRules { confirmed_only: live.needs_confirmed, spans: live.spans() };
    let (sequence, cached) = cache.begin_within(&live.keys(), rules);
    live.begin(cached);
    sequence
}

fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
