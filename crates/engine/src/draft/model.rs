//! A draft model: a smaller model that drafts for all requests of an engine.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use girih_graph::Outputs;
use girih_graph::Runner;
use girih_graph::backend::Unwatched;

use super::shared::{DraftNotes, DrafterId, choose, lock, room, with_known_bias};
use super::timing::measured;
use super::trials::Trials;
use crate::cache::{SequenceId, SharingRules};
use crate::cached_runner::{CachedRunner, StepTokens};
use crate::hooks::guard;
use crate::limits::check;
use crate::position_key::PositionKey;
use crate::{DraftQuery, Drafter, EngineLimits, Error, Result, Tenant};

/// A model that drafts for the requests to another one with the same vocabulary. It has its own KV
/// cache, which it keeps in step with the accepted tokens of each request.
///
/// It chooses with the sampling settings and the random numbers of the request, so that a model
/// with a similar distribution chooses the same token at any temperature.
pub struct DraftModel {
    runner: CachedRunner,
    limits: EngineLimits,
    /// The time of a drafted token, in steps of the other model.
    cost: f32,
    /// The sequences of requests, the one used last at the end.
    sequences: Vec<(DrafterId, SequenceId)>,
    next: u64,
    notes: DraftNotes,
    /// When the tokens before the last draft had been run.
    drafting_since: Instant,
}

impl DraftModel {
    /// Returns a draft model. A step of one row takes `relative_cost` steps of the other model, unless the engine
    /// measures it. If it fails, drafting ends, and `note` receives a sentence that says so, as it does once if drafts
    /// end because they do not pay.
    ///
    /// # Errors
    /// As [`Engine::new`](crate::Engine::new).
    pub fn new(
        runner: Box<dyn Runner>,
        limits: EngineLimits,
        relative_cost: f32,
        note: impl Fn(String) + Send + 'static,
    ) -> Result<DraftModel> {
        check(&*runner, &limits)?;
        Ok(DraftModel {
            runner: CachedRunner::new(runner)?,
            limits,
            cost: relative_cost.max(0.0),
            sequences: Vec::new(),
            next: 0,
            notes: DraftNotes::new("the draft model", note),
            drafting_since: Instant::now(),
        })
    }

    /// Measures the time of a drafted token, beside a step of the other model that takes `step`.
    pub(super) fn measure(&mut self, step: Duration) -> Result<f32> {
        let own = measured(&mut self.runner, 1, None)?.one_row();
        self.cost = own.map_or(self.cost, |own| (own.as_secs_f64() / step.as_secs_f64()) as f32);
        Ok(self.cost)
    }

    /// Drafts at most `count` tokens; none while a long prompt is being run, after a failure, or if
    /// the tokens are too many or unknown to this model. A draft ends where the request allows no token
    /// that this model knows.
    fn draft(&mut self, drafter: (DrafterId, &Tenant), query: DraftQuery<'_>, count: u32) -> Vec<u32> {
        let width = self.runner.inner().width();
        let count = room(query.tokens, self.limits.context, width, count);
        if self.notes.has_failed() || count == 0 {
            return Vec::new();
        }
        guard("the draft model", || self.run(drafter, query, count)).flatten().unwrap_or_else(|error| {
            // Its state is undefined.
            self.sequences.clear();
            self.notes.fail(&error);
            Vec::new()
        })
    }

    /// Runs the tokens that its state lacks, at most one chunk in a call so that other requests do not
    /// wait; then chooses `count` tokens.
    fn run(
        &mut self,
        drafter: (DrafterId, &Tenant),
        query: DraftQuery<'_>,
        count: usize,
    ) -> Result<Vec<u32>> {
        let sequence = self.sequence(drafter, query.tokens);
        let run = self.runner.cache.length(sequence) as usize;
        let mut tokens = query.tokens.to_vec();
        if tokens.len() - run > self.limits.chunk as usize {
            self.step(sequence, &tokens[run..][..self.limits.chunk as usize], Outputs::None)?;
            return Ok(Vec::new());
        }
        self.step(sequence, &tokens[run..], Outputs::Last)?;
        self.drafting_since = Instant::now();
        let known = tokens.len();
        let width = self.runner.inner().width();
        let sampling = with_known_bias(query.sampling, width);
        loop {
            let replied = query.replied + tokens.len() - known;
            let chosen = choose(&mut self.runner, &sampling, (&tokens, replied))?;
            self.runner.cache.confirm(sequence);
            tokens.extend(chosen);
            if chosen.is_none() || tokens.len() == known + count {
                return Ok(tokens.split_off(known));
            }
            self.step(sequence, &tokens[tokens.len() - 1..], Outputs::Last)?;
        }
    }

    /// Returns the drafter's sequence, stepped back to what it shares with `tokens` without the last.
    fn sequence(&mut self, (id, tenant): (DrafterId, &Tenant), tokens: &[u32]) -> SequenceId {
        let cache = &mut self.runner.cache;
        let found = self.sequences.iter().position(|(owner, _)| *owner == id);
        let kept = found.map(|index| self.sequences.remove(index).1).filter(|&sequence| {
            let run = cache.tokens(sequence).iter().zip(&tokens[..tokens.len() - 1]);
            let shared = run.take_while(|(run, token)| **run == PositionKey::Token(**token)).count();
            let is_kept = cache.rewind(sequence, shared as u32, &[]).is_some();
            if !is_kept {
                cache.discard(sequence);
            }
            is_kept
        });
        let sequence = kept.unwrap_or_else(|| {
            if self.sequences.len() == self.limits.sequences as usize {
                cache.end(self.sequences.remove(0).1);
            }
            let keys: Vec<PositionKey> = tokens.iter().copied().map(PositionKey::Token).collect();
            let rules = SharingRules { tenant: tenant.clone(), ..SharingRules::default() };
            cache.begin_within(&keys, rules).0
        });
        self.sequences.push((id, sequence));
        sequence
    }

    /// Runs the next tokens of a sequence.
    fn step(&mut self, sequence: SequenceId, tokens: &[u32], outputs: Outputs) -> Result<()> {
        let end = self.runner.cache.length(sequence) + tokens.len() as u32;
        if !self.runner.reserve(sequence, end)? {
            return Err(Error::new("its KV cache has no free blocks; this is a bug in girih"));
        }
        self.runner.run_one(StepTokens::plain(sequence, tokens, outputs), &mut Unwatched)
    }

    /// Ends the sequence of a drafter; what it has run stays in the prefix cache.
    fn end(&mut self, id: DrafterId) {
        if let Some(index) = self.sequences.iter().position(|(owner, _)| *owner == id) {
            self.runner.cache.end(self.sequences.remove(index).1);
        }
    }
}

/// Drafts for one request with a shared model.
pub(super) struct ModelDrafter {
    model: Arc<Mutex<DraftModel>>,
    id: DrafterId,
    tenant: Tenant,
    max: u32,
    trials: Trials,
}

impl ModelDrafter {
    /// Returns a drafter for a request of a tenant, which drafts at most `max` tokens at once.
    pub fn new(model: Arc<Mutex<DraftModel>>, max: u32, tenant: Tenant) -> ModelDrafter {
        let mut shared = lock(&model);
        let id = DrafterId(shared.next);
        shared.next += 1;
        drop(shared);
        ModelDrafter { model, id, tenant, max, trials: Trials::new() }
    }
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32> {
        let mut model = lock(&self.model);
        let Some(planned) = self.trials.plan(&query, model.cost, self.max) else { return Vec::new() };
        let draft = model.draft((self.id, &self.tenant), query, planned.count);
        self.trials.record(&query, planned, &draft, model.drafting_since.elapsed());
        if self.trials.is_over() {
            model.notes.stop(self.trials.acceptance());
        }
        draft
    }
}

impl Drop for ModelDrafter {
    fn drop(&mut self) {
        lock(&self.model).end(self.id);
    }
}
