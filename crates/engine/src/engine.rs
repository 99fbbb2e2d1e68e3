//! The loop: schedule, run, sample, settle. Synchronous and single-threaded.

use std::collections::VecDeque;
use std::time::Instant;

use girih_graph::backend::{Range32, Unwatched};
use girih_graph::{BLOCK_POSITIONS, Runner, Variant, Want, Watch};

use crate::cache::Cache;
use crate::job::Job;
use crate::model::Model;
use crate::sample::{Logprobs, logprobs, pick};
use crate::schedule::{Batch, schedule};
use crate::text::Detokenize;
use crate::{Error, Event, Limits, Request, RequestId, Result, Stop, What};

/// A loaded model and the requests that share it, one at a time for now.
///
/// The lifetime is that of the tokenizer whose detokenizers come with the
/// requests.
pub struct Engine<'w> {
    model: Model,
    limits: Limits,
    waiting: VecDeque<Job<'w>>,
    active: Option<Job<'w>>,
    cancelled: Vec<Job<'w>>,
    events: Vec<Event>,
    /// The logits of one row.
    logits: Vec<f32>,
    /// The id of the next request.
    next: u64,
}

impl<'w> Engine<'w> {
    /// An engine around a loaded model.
    ///
    /// # Errors
    /// When the model takes no tokens or yields no logits, or when its largest
    /// step or its state is too small for `limits`.
    pub fn new(runner: Box<dyn Runner>, limits: Limits) -> Result<Engine<'w>> {
        let most = runner.most();
        if most.variant != Variant::GENERATE || most.wanted == 0 || most.lanes == 0 {
            return Err(Error::new("the loaded programs do not turn tokens into logits; load some that do"));
        }
        let positions =
            runner.blocks().iter().map(|blocks| u64::from(*blocks) * BLOCK_POSITIONS as u64).min();
        let context = positions.map_or(u64::from(most.context), |held| held.min(most.context.into()));
        for (what, asked, most) in
            [("context", limits.context, context), ("prefill chunk", limits.chunk, most.rows.into())]
        {
            if asked == 0 || u64::from(asked) > most {
                return Err(Error::new(format!(
                    "a {what} of {asked} was asked for; the loaded programs and their state take 1 to {most}"
                )));
            }
        }
        let logits = vec![0.0; runner.width()];
        Ok(Engine {
            model: Model::new(runner),
            limits,
            waiting: VecDeque::new(),
            active: None,
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
        self.model.cache()
    }

    /// Whether [`Engine::step`] would do nothing.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_none() && self.cancelled.is_empty()
    }

    /// Queues a request. Without `words` its events have ids and no text.
    ///
    /// # Errors
    /// When the request exceeds the limits or contradicts itself.
    pub fn submit(&mut self, request: Request, words: Option<Box<dyn Detokenize + 'w>>) -> Result<RequestId> {
        request.check(&self.limits, self.logits.len())?;
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
        let job = waiting
            .and_then(|index| self.waiting.remove(index))
            .or_else(|| self.active.take_if(|job| job.id() == id));
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
        self.model.forget();
        Ok(())
    }

    /// Runs the model once, for the request at the head of the queue.
    pub fn step(&mut self) -> &[Event] {
        self.events.clear();
        self.events.extend(self.cancelled.drain(..).map(|job| job.finish(Stop::Cancelled)));
        if let Some(mut job) = self.active.take().or_else(|| self.begin()) {
            match self.advance(&mut job) {
                Ok(None) => self.active = Some(job),
                Ok(Some(stop)) => self.events.push(job.finish(stop)),
                Err(error) => {
                    // Where a sample failed, what was run may be spoiled too.
                    self.model.forget();
                    self.events.push(job.event(What::Failed(error)));
                }
            }
        }
        &self.events
    }

    /// The next request, resumed from what the cache shares with its prompt.
    fn begin(&mut self) -> Option<Job<'w>> {
        let mut job = self.waiting.pop_front()?;
        job.stats.cached = self.model.resume(&job.tokens);
        Some(job)
    }

    /// One step of a request, and why its reply ends with it, if it does.
    fn advance(&mut self, job: &mut Job<'w>) -> Result<Option<Stop>> {
        let begun = Instant::now();
        let held = self.model.cache().tokens().len() as u32;
        let batch = schedule(held, job.tokens.len() as u32, self.limits.chunk);
        let wanted = batch.want.count(batch.rows()) as usize * self.logits.len();
        self.model.run(&job.tokens, batch, &mut self.logits[..wanted], &mut Unwatched)?;
        let choice = if batch.want == Want::Last { Some(self.choose(job)?) } else { None };
        job.count(batch.rows(), begun.elapsed());
        Ok(choice.and_then(|(id, logprobs)| self.settle(job, id, logprobs)))
    }

    /// The next token, and its log-probabilities where they are asked for.
    fn choose(&self, job: &Job<'w>) -> Result<(u32, Option<Logprobs>)> {
        let id = pick(&self.logits, &job.request.sampling, job.history())?;
        Ok((id, job.request.logprobs.map(|top| logprobs(&self.logits, id, top))))
    }

    /// Takes a chosen token into the reply, or ends the reply with it.
    fn settle(&mut self, job: &mut Job<'w>, id: u32, logprobs: Option<Logprobs>) -> Option<Stop> {
        if job.history().reply.is_empty() {
            self.events.push(job.event(What::Prefilled(job.stats)));
        }
        if job.request.stops.tokens.contains(&id) {
            return Some(Stop::Token(id));
        }
        let (event, stop) = job.append(id, logprobs);
        self.events.push(event);
        stop
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
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.at_rest("no other sequence can be run")?;
        if tokens.len() > self.limits.context as usize {
            let (have, most) = (tokens.len(), self.limits.context);
            return Err(Error::new(format!(
                "the text has {have} tokens; the context is {most}: cut it into windows"
            )));
        }
        self.model.forget();
        let (chunk, width) = (self.limits.chunk.min(self.runner().most().wanted), self.logits.len());
        let length = tokens.len() as u32;
        let mut rows = vec![0.0; chunk.min(length) as usize * width];
        for start in (0..length).step_by(chunk as usize) {
            let positions = Range32 { start, end: length.min(start.saturating_add(chunk)) };
            let batch = Batch { positions, want: Want::All };
            let rows = &mut rows[..batch.rows() as usize * width];
            self.model.run(tokens, batch, rows, watch)?;
            positions.indexes().zip(rows.chunks_exact(width)).for_each(|(position, row)| each(position, row));
        }
        Ok(())
    }

    /// Refuses while a request is being worked on.
    fn at_rest(&self, consequence: &str) -> Result<()> {
        match &self.active {
            None => Ok(()),
            Some(job) => {
                let id = job.id().0;
                Err(Error::new(format!(
                    "request {id} is being worked on, so {consequence}; finish or cancel it"
                )))
            }
        }
    }
}
