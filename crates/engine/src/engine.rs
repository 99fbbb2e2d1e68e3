//! The loop: schedule, run, sample, settle. Synchronous and single-threaded.

use std::collections::VecDeque;
use std::mem::take;
use std::time::{Duration, Instant};

use girih_graph::backend::Unwatched;
use girih_graph::{BLOCK_POSITIONS, Key, Outputs, Runner, Span, Variant, Watch};

use crate::cache::{self, Cache, SequenceId};
use crate::job::Job;
use crate::model::{Model, PendingTokens};
use crate::sample::{Logprobs, logprobs, pick};
use crate::schedule::{Part, Progress, schedule};
use crate::text::Detokenize;
use crate::{Error, Event, Limits, Request, RequestId, Result, Stop, What};

/// A loaded model and the requests that share it.
///
/// Requests are begun in the order in which they were submitted, as long as
/// there are sequences and blocks of state for them. When blocks run out later, the
/// youngest request goes back to the head of the queue with what it has
/// generated; its state is computed again when there is room, and its reply
/// goes on as if nothing had happened.
///
/// The lifetime is that of the tokenizer whose detokenizers come with the
/// requests.
pub struct Engine<'w> {
    model: Model,
    limits: Limits,
    /// By age; all are younger than the active ones.
    waiting: VecDeque<Job<'w>>,
    /// By age.
    active: Vec<Active<'w>>,
    cancelled: Vec<Job<'w>>,
    events: Vec<Event>,
    /// The logits of a row for each sequence.
    logits: Vec<f32>,
    /// The id of the next request.
    next: u64,
}

/// A request that is being worked on.
struct Active<'w> {
    job: Job<'w>,
    sequence: SequenceId,
}

/// A chosen token, and its log-probabilities where they are asked for.
type Choice = (u32, Option<Logprobs>);

impl<'w> Engine<'w> {
    /// An engine around a loaded model.
    ///
    /// # Errors
    /// When the model takes no tokens or yields no logits, or when its largest
    /// step or its state is too small for `limits`.
    pub fn new(runner: Box<dyn Runner>, limits: Limits) -> Result<Engine<'w>> {
        check(&*runner, &limits)?;
        let logits = vec![0.0; runner.width() * limits.sequences as usize];
        Ok(Engine {
            model: Model::new(runner),
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
        self.model.runner()
    }

    /// The bounds on requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Which blocks are in use, and what they hold.
    pub fn cache(&self) -> &Cache {
        &self.model.cache
    }

    /// How many requests are being worked on; the others wait.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Whether [`Engine::step`] would do nothing.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.cancelled.is_empty()
    }

    /// Queues a request. Without `words` its events have ids and no text.
    ///
    /// # Errors
    /// When the request exceeds the limits or contradicts itself.
    pub fn submit(&mut self, request: Request, words: Option<Box<dyn Detokenize + 'w>>) -> Result<RequestId> {
        request.check(&self.limits, self.runner().width())?;
        if words.is_none() && !request.stops.strings.is_empty() {
            return Err(Error::new(
                "stop strings need a detokenizer; this model has none, so use stop tokens",
            ));
        }
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.push_back(Job::new(id, request, words, self.limits.context));
        Ok(id)
    }

    /// Ends a request, whose last event the next step returns; `false` when it
    /// has ended already. What it has run stays held, as after any other end.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let waiting = self.waiting.iter().position(|job| job.id() == id);
        let active = self.active.iter().position(|active| active.job.id() == id);
        let job = match (waiting, active) {
            (Some(index), _) => self.waiting.remove(index),
            (None, Some(index)) => {
                let Active { job, sequence } = self.active.remove(index);
                self.model.cache.end(sequence);
                Some(job)
            }
            (None, None) => None,
        };
        let found = job.is_some();
        self.cancelled.extend(job);
        found
    }

    /// Forgets the tokens that are held from earlier requests.
    ///
    /// # Errors
    /// When a request is being worked on.
    pub fn forget(&mut self) -> Result<()> {
        self.at_rest("its tokens cannot be forgotten")?;
        self.model.cache.forget();
        Ok(())
    }

    /// Runs the model once, for all requests that are being worked on.
    pub fn step(&mut self) -> &[Event] {
        self.events.clear();
        self.events.extend(self.cancelled.drain(..).map(|job| job.finish(Stop::Cancelled)));
        self.admit();
        let parts = self.plan();
        if !parts.is_empty() {
            self.advance(&parts);
        }
        &self.events
    }

    /// Begins what waits, as long as this step has rows left for it. A prompt
    /// is compared with what is held only then, so that it finds what the
    /// prompts before it have run.
    fn admit(&mut self) {
        while (self.active.len() as u32) < self.limits.sequences && self.rows() < self.limits.chunk {
            if !self.waiting.front().is_some_and(|job| self.fits(job)) {
                break;
            }
            let Some(mut job) = self.waiting.pop_front() else { break };
            let (sequence, cached) = self.model.cache.begin(&job.tokens);
            job.begin(cached);
            self.active.push(Active { job, sequence });
        }
    }

    /// The rows that would run all that is known.
    fn rows(&self) -> u32 {
        self.progress().iter().map(|progress| progress.known - progress.run).fold(0, u32::saturating_add)
    }

    /// Whether there are blocks for a request beside the active ones. Alone it
    /// always fits: its size was checked when it was submitted.
    fn fits(&self, job: &Job<'_>) -> bool {
        let working: Vec<_> = self.active.iter().map(|active| (active.sequence, active.job.soon())).collect();
        working.is_empty() || self.model.cache.admits(&working, job.soon(), self.limits.chunk)
    }

    /// How far the active requests are.
    fn progress(&self) -> Vec<Progress> {
        let progress = self.active.iter().map(|Active { job, sequence }| Progress {
            run: self.model.cache.length(*sequence),
            known: job.tokens.len() as u32,
        });
        progress.collect()
    }

    /// What the next step runs, with blocks reserved for it, the oldest first.
    fn plan(&mut self) -> Vec<Part> {
        let mut parts = schedule(&self.progress(), self.limits.chunk);
        parts.retain(|part| {
            while let Some(Active { sequence, .. }) = self.active.get(part.sequence) {
                if self.model.reserve(*sequence, part.positions.end) {
                    return true;
                }
                self.send_back();
            }
            false
        });
        parts
    }

    /// Sends the youngest active request back to the head of the queue.
    fn send_back(&mut self) {
        let Active { mut job, sequence } = self.active.pop().expect("a request lacks blocks");
        assert!(!self.active.is_empty(), "one sequence within the limits fits into the state");
        self.model.cache.end(sequence);
        job.send_back();
        self.waiting.push_front(job);
    }

    /// Runs a step and settles what follows from it.
    fn advance(&mut self, parts: &[Part]) {
        let begun = Instant::now();
        let slice = |part: &Part| {
            let Active { job, sequence } = &self.active[part.sequence];
            let tokens = &job.tokens[part.positions.indexes()];
            PendingTokens { sequence: *sequence, tokens, outputs: part.outputs }
        };
        let pending: Vec<_> = parts.iter().map(slice).collect();
        if let Err(error) = self.model.run(&pending, &mut self.logits, &mut Unwatched) {
            return self.fail(parts, &error);
        }
        let choices = self.choose(parts);
        let time = begun.elapsed();
        let mut settled = parts.iter().zip(choices).peekable();
        for (index, mut active) in take(&mut self.active).into_iter().enumerate() {
            let settled = settled.next_if(|(part, _)| part.sequence == index);
            let end = settled.and_then(|(part, choice)| self.settle(&mut active.job, part, choice, time));
            match end {
                None => self.active.push(active),
                Some(end) => self.close(active, end),
            }
        }
    }

    /// The next token of each part that wants one.
    fn choose(&self, parts: &[Part]) -> Vec<Option<Result<Choice>>> {
        let mut rows = self.logits.chunks_exact(self.runner().width());
        let output_rows = parts.iter().map(|part| {
            let row = if part.outputs == Outputs::Last { rows.next() } else { None };
            row.map(|logits| {
                let job = &self.active[part.sequence].job;
                let id = pick(logits, &job.request.sampling, job.history())?;
                Ok((id, job.request.logprobs.map(|top| logprobs(logits, id, top))))
            })
        });
        output_rows.collect()
    }

    /// Counts a step of a request and takes a chosen token into its reply;
    /// returns how the request ends with it, if it does.
    fn settle(
        &mut self,
        job: &mut Job<'w>,
        part: &Part,
        choice: Option<Result<Choice>>,
        time: Duration,
    ) -> Option<Result<Stop>> {
        job.count(part.positions, time);
        let (id, logprobs) = match choice? {
            Ok(choice) => choice,
            Err(error) => return Some(Err(error)),
        };
        if job.made().is_empty() {
            job.chose_first();
            self.events.push(job.event(What::Prefilled(job.stats)));
        }
        if job.request.stops.tokens.contains(&id) {
            return Some(Ok(Stop::Token(id)));
        }
        let (event, stop) = job.append(id, logprobs);
        self.events.push(event);
        stop.map(Ok)
    }

    /// Ends a request that was being worked on.
    fn close(&mut self, active: Active<'w>, end: Result<Stop>) {
        let Active { job, sequence } = active;
        match end {
            Ok(stop) => {
                self.model.cache.end(sequence);
                self.events.push(job.finish(stop));
            }
            Err(error) => {
                // Where a sample failed, what was run may be spoiled too, and
                // with it what shares blocks with it.
                self.model.cache.discard(sequence);
                self.model.cache.forget();
                self.events.push(job.event(What::Failed(error)));
            }
        }
    }

    /// Ends all requests of a step that the device has failed. The others begin
    /// again, because it is not known what the state holds.
    fn fail(&mut self, parts: &[Part], error: &Error) {
        let mut others = Vec::new();
        for (index, Active { mut job, sequence }) in take(&mut self.active).into_iter().enumerate() {
            self.model.cache.discard(sequence);
            if parts.iter().any(|part| part.sequence == index) {
                self.events.push(job.event(What::Failed(error.clone())));
            } else {
                job.send_back();
                others.push(job);
            }
        }
        self.model.cache.forget();
        others.into_iter().rev().for_each(|job| self.waiting.push_front(job));
    }

    /// Runs `tokens` as one sequence from its beginning, in chunks, and hands
    /// each position with its logits to `each`, NaN and all. The sequence is
    /// held afterwards.
    ///
    /// # Errors
    /// When a request is being worked on, the tokens do not fit, or the device
    /// fails; then nothing is held.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        watch: &mut dyn Watch,
        each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.alone(tokens, |engine, sequence| engine.read(sequence, tokens, watch, each))
    }

    /// As [`Engine::logits`], in the largest chunks that there are: only the
    /// logits that follow the last token are computed. Zeros follow no tokens.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn last_logits(&mut self, tokens: &[u32], watch: &mut dyn Watch) -> Result<Vec<f32>> {
        self.alone(tokens, |engine, sequence| {
            let mut row = vec![0.0; engine.runner().width()];
            let (mut end, all) = (0, tokens.len());
            for tokens in tokens.chunks(engine.limits.chunk as usize) {
                end += tokens.len();
                let room = engine.model.reserve(sequence, end as u32);
                assert!(room, "one sequence within the limits fits into the state");
                let outputs = if end == all { Outputs::Last } else { Outputs::None };
                engine.model.run(&[PendingTokens { sequence, tokens, outputs }], &mut row, watch)?;
            }
            Ok(row)
        })
    }

    /// Lets `run` work on an empty sequence that `tokens` fit, while there is
    /// no other. It is held afterwards unless `run` fails.
    fn alone<T>(
        &mut self,
        tokens: &[u32],
        run: impl FnOnce(&mut Engine<'w>, SequenceId) -> Result<T>,
    ) -> Result<T> {
        self.at_rest("no other sequence can be run")?;
        if tokens.len() > self.limits.context as usize {
            let (have, most) = (tokens.len(), self.limits.context);
            return Err(Error::new(format!(
                "the text has {have} tokens; the context is {most}: cut it into windows"
            )));
        }
        self.model.cache.forget();
        let (sequence, _) = self.model.cache.begin(&[]);
        let result = run(self, sequence);
        match result {
            Ok(_) => self.model.cache.end(sequence),
            Err(_) => self.model.cache.discard(sequence),
        }
        result
    }

    /// Runs `tokens` in chunks of as many rows as the programs hand out.
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
            assert!(self.model.reserve(sequence, end), "one sequence within the limits fits into the state");
            self.model.run(&[PendingTokens { sequence, tokens, outputs: Outputs::All }], &mut rows, watch)?;
            for row in rows.chunks_exact(width).take(tokens.len()) {
                each(position, row);
                position += 1;
            }
        }
        Ok(())
    }

    /// Refuses while a request is being worked on.
    fn at_rest(&self, consequence: &str) -> Result<()> {
        match self.active.first() {
            None => Ok(()),
            Some(Active { job, .. }) => {
                let id = job.id().0;
                Err(Error::new(format!(
                    "request {id} is being worked on, so {consequence}; finish or cancel it"
                )))
            }
        }
    }
}

/// Refuses limits that exceed the loaded programs and their state.
fn check(runner: &dyn Runner, limits: &Limits) -> Result<()> {
    let most = runner.max_key();
    if most.variant != Variant::GENERATE || most.output_rows == 0 || most.sequences == 0 {
        return Err(Error::new("the loaded programs do not turn tokens into logits; load some that do"));
    }
    let alone = Key { sequences: 1, rows: limits.chunk, ..most };
    let positions = runner.groups().iter().zip(runner.blocks()).map(|(group, &have)| match group.span {
        Span::Window(_) if have >= cache::blocks(group.span, &alone) => u64::MAX,
        _ => u64::from(have) * BLOCK_POSITIONS as u64,
    });
    let context = positions.fold(most.context.into(), u64::min);
    for (what, asked, most) in
        [("context", limits.context, context), ("prefill chunk", limits.chunk, most.rows.into())]
    {
        if asked == 0 || u64::from(asked) > most {
            return Err(Error::new(format!(
                "a {what} of {asked} was asked for; the loaded programs and their state take 1 to {most}"
            )));
        }
    }
    let (sequences, chunk) = (limits.sequences, limits.chunk);
    let together = most.sequences.min(most.output_rows).min(chunk);
    if sequences == 0 || sequences > together {
        return Err(Error::new(format!(
            "{sequences} sequences together were asked for; the loaded programs take 1 to {together} \
             in steps of {chunk} rows"
        )));
    }
    Ok(())
}
