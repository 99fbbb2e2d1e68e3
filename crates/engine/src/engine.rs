//! The step loop: schedule, run, sample, update requests. Synchronous and
//! single-threaded.

use std::collections::VecDeque;
use std::mem::take;
use std::time::{Duration, Instant};

use girih_graph::backend::Unwatched;
use girih_graph::{BLOCK_POSITIONS, Key, Outputs, Runner, Span, Variant, Watch};

use crate::cache::{self, PrefixCache, SequenceId};
use crate::cached_runner::{CachedRunner, StepTokens};
use crate::live_request::LiveRequest;
use crate::sample::{Logprobs, logprobs, pick};
use crate::schedule::{ScheduledRows, SequenceProgress, schedule};
use crate::text::Detokenize;
use crate::{EngineLimits, Error, EventKind, Request, RequestEvent, RequestId, Result, Stop};

/// A loaded model and the requests that share it.
///
/// Requests are admitted in the order of submission, as long as sequences and blocks
/// of state are available. If blocks run out later, the youngest request is preempted:
/// it goes back to the head of the queue with the tokens that it has generated. Its
/// state is recomputed when blocks are available again; its reply does not change.
///
/// The lifetime is that of the tokenizer from which the requests' detokenizers borrow.
pub struct Engine<'w> {
    runner: CachedRunner,
    limits: EngineLimits,
    /// Ordered by age; all are younger than the active ones.
    waiting: VecDeque<LiveRequest<'w>>,
    /// Ordered by age.
    active: Vec<Active<'w>>,
    cancelled: Vec<LiveRequest<'w>>,
    events: Vec<RequestEvent>,
    /// One row of logits per sequence.
    logits: Vec<f32>,
    /// The id of the next request.
    next: u64,
}

/// A request that has been admitted, and its sequence.
struct Active<'w> {
    live: LiveRequest<'w>,
    sequence: SequenceId,
}

/// A chosen token, and its log-probabilities if the request asked for them.
type ChosenToken = (u32, Option<Logprobs>);

impl<'w> Engine<'w> {
    /// Returns an engine for a loaded model.
    ///
    /// # Errors
    /// When the model does not map tokens to logits, or when its largest step or its
    /// state is too small for `limits`.
    pub fn new(runner: Box<dyn Runner>, limits: EngineLimits) -> Result<Engine<'w>> {
        check(&*runner, &limits)?;
        let logits = vec![0.0; runner.width() * limits.sequences as usize];
        Ok(Engine {
            runner: CachedRunner::new(runner),
            limits,
            waiting: VecDeque::new(),
            active: Vec::new(),
            cancelled: Vec::new(),
            events: Vec::new(),
            logits,
            next: 0,
        })
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
    pub fn cache(&self) -> &PrefixCache {
        &self.runner.cache
    }

    /// The number of active requests; the others wait.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Whether [`Engine::step`] would do nothing.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.cancelled.is_empty()
    }

    /// Queues a request. Without a `detokenizer`, its events have ids but no text.
    ///
    /// # Errors
    /// When the request exceeds the limits or contradicts itself.
    pub fn submit(
        &mut self,
        request: Request,
        detokenizer: Option<Box<dyn Detokenize + 'w>>,
    ) -> Result<RequestId> {
        request.check(&self.limits, self.runner().width())?;
        if detokenizer.is_none() && !request.stops.strings.is_empty() {
            return Err(Error::new(
                "stop strings need a detokenizer; this model has none, so use stop tokens",
            ));
        }
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.push_back(LiveRequest::new(id, request, detokenizer, self.limits.context));
        Ok(id)
    }

    /// Cancels a request; the next step returns its last event. Returns `false` if it has
    /// already ended. Its tokens stay in the prefix cache, as after any other end.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let waiting = self.waiting.iter().position(|live| live.id() == id);
        let active = self.active.iter().position(|active| active.live.id() == id);
        let live = match (waiting, active) {
            (Some(index), _) => self.waiting.remove(index),
            (None, Some(index)) => {
                let Active { live, sequence } = self.active.remove(index);
                self.runner.cache.end(sequence);
                Some(live)
            }
            (None, None) => None,
        };
        let found = live.is_some();
        self.cancelled.extend(live);
        found
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
        let scheduled = self.plan();
        if !scheduled.is_empty() {
            self.advance(&scheduled);
        }
        &self.events
    }

    /// Admits waiting requests while this step has rows left. A prompt is looked up in the
    /// prefix cache only now, so that it finds the tokens of the prompts before it.
    fn admit(&mut self) {
        while (self.active.len() as u32) < self.limits.sequences && self.rows() < self.limits.chunk {
            if !self.waiting.front().is_some_and(|live| self.fits(live)) {
                break;
            }
            let Some(mut live) = self.waiting.pop_front() else { break };
            let (sequence, cached) = self.runner.cache.begin(&live.tokens);
            live.begin(cached);
            self.active.push(Active { live, sequence });
        }
    }

    /// The number of rows that would run all known tokens.
    fn rows(&self) -> u32 {
        self.progress().iter().map(|progress| progress.known - progress.run).fold(0, u32::saturating_add)
    }

    /// Whether the blocks suffice for a request beside the active ones. Alone it always
    /// fits, because its size was checked at submission.
    fn fits(&self, live: &LiveRequest<'_>) -> bool {
        let soon: Vec<_> = self.active.iter().map(|active| (active.sequence, active.live.soon())).collect();
        soon.is_empty() || self.runner.cache.admits(&soon, live.soon(), self.limits.chunk)
    }

    /// The progress of the active requests.
    fn progress(&self) -> Vec<SequenceProgress> {
        let progress = self.active.iter().map(|Active { live, sequence }| SequenceProgress {
            run: self.runner.cache.length(*sequence),
            known: live.tokens.len() as u32,
        });
        progress.collect()
    }

    /// Schedules the next step, the oldest request first, and reserves blocks for it.
    fn plan(&mut self) -> Vec<ScheduledRows> {
        let mut scheduled = schedule(&self.progress(), self.limits.chunk);
        scheduled.retain(|rows| {
            while let Some(Active { sequence, .. }) = self.active.get(rows.sequence) {
                if self.runner.reserve(*sequence, rows.positions.end) {
                    return true;
                }
                self.send_back();
            }
            false
        });
        scheduled
    }

    /// Preempts the youngest active request: sends it back to the head of the queue.
    fn send_back(&mut self) {
        let Active { mut live, sequence } = self.active.pop().expect("an active request lacks blocks");
        assert!(!self.active.is_empty(), "one sequence within the limits fits into the state");
        self.runner.cache.end(sequence);
        live.send_back();
        self.waiting.push_front(live);
    }

    /// Runs a step and updates its requests.
    fn advance(&mut self, scheduled: &[ScheduledRows]) {
        let started = Instant::now();
        let step_tokens = |rows: &ScheduledRows| {
            let Active { live, sequence } = &self.active[rows.sequence];
            let tokens = &live.tokens[rows.positions.indexes()];
            StepTokens { sequence: *sequence, tokens, outputs: rows.outputs }
        };
        let pending: Vec<_> = scheduled.iter().map(step_tokens).collect();
        if let Err(error) = self.runner.run(&pending, &mut self.logits, &mut Unwatched) {
            return self.fail(scheduled, &error);
        }
        let choices = self.choose(scheduled);
        let time = started.elapsed();
        let mut settled = scheduled.iter().zip(choices).peekable();
        for (index, mut active) in take(&mut self.active).into_iter().enumerate() {
            let settled = settled.next_if(|(rows, _)| rows.sequence == index);
            let end = settled.and_then(|(rows, choice)| self.settle(&mut active.live, rows, choice, time));
            match end {
                None => self.active.push(active),
                Some(end) => self.close(active, end),
            }
        }
    }

    /// Chooses the next token of each sequence that has an output row.
    fn choose(&self, scheduled: &[ScheduledRows]) -> Vec<Option<Result<ChosenToken>>> {
        let mut logits = self.logits.chunks_exact(self.runner().width());
        let choices = scheduled.iter().map(|rows| {
            let row = if rows.outputs == Outputs::Last { logits.next() } else { None };
            row.map(|logits| {
                let live = &self.active[rows.sequence].live;
                let id = pick(logits, &live.request.sampling, live.history())?;
                Ok((id, live.request.logprobs.map(|top| logprobs(logits, id, top))))
            })
        });
        choices.collect()
    }

    /// Counts a step of a request and appends a chosen token to its reply; returns how the
    /// request ends, if it ends with this token.
    fn settle(
        &mut self,
        live: &mut LiveRequest<'w>,
        rows: &ScheduledRows,
        choice: Option<Result<ChosenToken>>,
        time: Duration,
    ) -> Option<Result<Stop>> {
        live.count(rows.positions, time);
        let (id, logprobs) = match choice? {
            Ok(choice) => choice,
            Err(error) => return Some(Err(error)),
        };
        if live.generated().is_empty() {
            live.chose_first();
            self.events.push(live.event(EventKind::Prefilled(live.stats)));
        }
        if live.request.stops.tokens.contains(&id) {
            return Some(Ok(Stop::Token(id)));
        }
        let (event, stop) = live.append(id, logprobs);
        self.events.push(event);
        stop.map(Ok)
    }

    /// Ends an active request.
    fn close(&mut self, active: Active<'w>, end: Result<Stop>) {
        let Active { live, sequence } = active;
        match end {
            Ok(stop) => {
                self.runner.cache.end(sequence);
                self.events.push(live.finish(stop));
            }
            Err(error) => {
                // If sampling failed, the sequence's state may be damaged, and with it
                // that of sequences that share its blocks.
                self.runner.cache.discard(sequence);
                self.runner.cache.forget();
                self.events.push(live.event(EventKind::Failed(error)));
            }
        }
    }

    /// Ends all requests of a step that failed on the device. The other active requests
    /// start again, because the state is undefined.
    fn fail(&mut self, scheduled: &[ScheduledRows], error: &Error) {
        let mut others = Vec::new();
        for (index, Active { mut live, sequence }) in take(&mut self.active).into_iter().enumerate() {
            self.runner.cache.discard(sequence);
            if scheduled.iter().any(|rows| rows.sequence == index) {
                self.events.push(live.event(EventKind::Failed(error.clone())));
            } else {
                live.send_back();
                others.push(live);
            }
        }
        self.runner.cache.forget();
        others.into_iter().rev().for_each(|live| self.waiting.push_front(live));
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
            let mut row = vec![0.0; engine.runner().width()];
            let (mut end, all) = (0, tokens.len());
            for tokens in tokens.chunks(engine.limits.chunk as usize) {
                end += tokens.len();
                let room = engine.runner.reserve(sequence, end as u32);
                assert!(room, "one sequence within the limits fits into the state");
                let outputs = if end == all { Outputs::Last } else { Outputs::None };
                engine.runner.run(&[StepTokens { sequence, tokens, outputs }], &mut row, watch)?;
            }
            Ok(row)
        })
    }

    /// Calls `run` with an empty sequence that has room for `tokens` while no request is
    /// active. The sequence stays in the prefix cache unless `run` fails.
    fn alone<T>(
        &mut self,
        tokens: &[u32],
        run: impl FnOnce(&mut Engine<'w>, SequenceId) -> Result<T>,
    ) -> Result<T> {
        self.require_idle("no other sequence can be run")?;
        if tokens.len() > self.limits.context as usize {
            let (have, max) = (tokens.len(), self.limits.context);
            return Err(Error::new(format!(
                "the text has {have} tokens; the context is {max}: split it into windows"
            )));
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
        let mut rows = vec![0.0; tokens.len().min(chunk as usize) * width];
        let mut position = 0;
        for tokens in tokens.chunks(chunk as usize) {
            let end = (position + tokens.len()) as u32;
            assert!(self.runner.reserve(sequence, end), "one sequence within the limits fits into the state");
            self.runner.run(&[StepTokens { sequence, tokens, outputs: Outputs::All }], &mut rows, watch)?;
            for row in rows.chunks_exact(width).take(tokens.len()) {
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
                Err(Error::new(format!("request {id} is active, so {consequence}; finish or cancel it")))
            }
        }
    }
}

/// Returns an error if limits exceed the loaded programs or their state.
fn check(runner: &dyn Runner, limits: &EngineLimits) -> Result<()> {
    let max_key = runner.max_key();
    if max_key.variant != Variant::GENERATE || max_key.output_rows == 0 || max_key.sequences == 0 {
        return Err(Error::new("the loaded programs do not map tokens to logits; load programs that do"));
    }
    let alone = Key { sequences: 1, rows: limits.chunk, ..max_key };
    let positions = runner.groups().iter().zip(runner.blocks()).map(|(group, &have)| match group.span {
        Span::Window(_) if have >= cache::blocks(group.span, &alone) => u64::MAX,
        _ => u64::from(have) * BLOCK_POSITIONS as u64,
    });
    let context = positions.fold(max_key.context.into(), u64::min);
    for (what, asked, max) in
        [("context", limits.context, context), ("prefill chunk", limits.chunk, max_key.rows.into())]
    {
        if asked == 0 || u64::from(asked) > max {
            return Err(Error::new(format!(
                "a {what} of {asked} was requested; the loaded programs and their state support 1 to {max}"
            )));
        }
    }
    let (sequences, chunk) = (limits.sequences, limits.chunk);
    let together = max_key.sequences.min(max_key.output_rows).min(chunk);
    if sequences == 0 || sequences > together {
        return Err(Error::new(format!(
            "{sequences} concurrent sequences were requested; the loaded programs support 1 to {together} \
             in steps of {chunk} rows"
        )));
    }
    Ok(())
}
