//! A draft model: a smaller model that drafts for all requests of an engine.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih_graph::Outputs;
use girih_graph::Runner;
use girih_graph::backend::Unwatched;

use super::acceptance::{AcceptanceRate, ROW_COST};
use crate::cache::{SequenceId, SharingRules};
use crate::cached_runner::{CachedRunner, StepTokens, failed};
use crate::hooks::guard;
use crate::limits::check;
use crate::position_key::PositionKey;
use crate::sample::{History, pick};
use crate::{DraftQuery, Drafter, EngineLimits, Error, ErrorKind, Result, Sampling, Tenant};

/// The number of tokens after which a drafter that stopped drafts one token as a trial; it doubles
/// with each trial that fails.
const TRIAL_DISTANCE: usize = 32;

/// The number of trials after which a drafter stops for good if all failed. Before a trial, the
/// model runs the tokens that it missed, which takes time.
const MAX_TRIALS: u32 = 3;

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
    note: Box<dyn Fn(String) + Send>,
    has_failed: bool,
}

/// The id of a drafter of one model; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrafterId(u64);

impl DraftModel {
    /// Returns a draft model. A step of one row takes `relative_cost` steps of the other model. If it
    /// fails, drafting ends, and `note` receives a sentence that says so.
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
            cost: ROW_COST + relative_cost.max(0.0),
            sequences: Vec::new(),
            next: 0,
            note: Box::new(note),
            has_failed: false,
        })
    }

    /// Drafts at most `count` tokens; none while a long prompt is being run, after a failure, or if
    /// the tokens are too many or unknown to this model. A draft ends where the request allows no token
    /// that this model knows.
    fn draft(&mut self, drafter: (DrafterId, &Tenant), query: DraftQuery<'_>, count: u32) -> Vec<u32> {
        let width = self.runner.inner().width();
        let room = (self.limits.context as usize + 1).saturating_sub(query.tokens.len());
        let count = room.min(count as usize);
        let is_unknown = |token: &u32| *token as usize >= width;
        if self.has_failed || count == 0 || query.tokens.iter().any(is_unknown) {
            return Vec::new();
        }
        guard("the draft model", || self.run(drafter, query, count)).flatten().unwrap_or_else(|error| {
            self.has_failed = true;
            // Its state is undefined.
            self.sequences.clear();
            (self.note)(format!("the draft model failed, so replies continue without drafts: {error}"));
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
        let known = tokens.len();
        let width = self.runner.inner().width();
        let sampling = with_known_bias(query.sampling, width);
        loop {
            let (prompt, reply) = tokens.split_at(known - query.replied);
            let logits = self.runner.output().rows(0..1).map_err(failed)?;
            let picked = pick(logits, &sampling, History { prompt, reply });
            // The request may allow only tokens that this model lacks, which is no fault of the model.
            let is_ruled_out = picked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Refused);
            if !is_ruled_out {
                tokens.push(picked?);
            }
            self.runner.cache.confirm(sequence);
            if is_ruled_out || tokens.len() == known + count {
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
    rate: AcceptanceRate,
    /// The tokens of the last draft, and the number of tokens before it.
    drafted: (usize, Vec<u32>),
    /// The number of tokens at which a drafter that stopped drafts a token.
    next_trial: usize,
    /// The number of trials since a drafted token was accepted.
    trials: u32,
}

impl ModelDrafter {
    /// Returns a drafter for a request of a tenant, which drafts at most `max` tokens at once.
    pub fn new(model: Arc<Mutex<DraftModel>>, max: u32, tenant: Tenant) -> ModelDrafter {
        let mut shared = lock(&model);
        let id = DrafterId(shared.next);
        shared.next += 1;
        drop(shared);
        ModelDrafter {
            model,
            id,
            tenant,
            max,
            rate: AcceptanceRate::new(0.8),
            drafted: (0, Vec::new()),
            next_trial: 0,
            trials: 0,
        }
    }
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32> {
        let known = query.tokens.len();
        let (position, guess) = std::mem::take(&mut self.drafted);
        let chosen = query.tokens.get(position..).unwrap_or_default();
        self.rate.count(&guess, chosen);
        if !guess.is_empty() && guess.first() == chosen.first() {
            self.trials = 0;
        }
        let mut model = lock(&self.model);
        let count = self.rate.best_length(model.cost, query.other_rows, self.max.min(query.max));
        let is_trial = count == 0;
        if is_trial && (known < self.next_trial || self.trials == MAX_TRIALS) {
            return Vec::new();
        }
        let draft = model.draft((self.id, &self.tenant), query, count.max(1));
        if is_trial && !draft.is_empty() {
            self.next_trial = known + (TRIAL_DISTANCE << self.trials);
            self.trials += 1;
        }
        self.drafted = (known, draft.clone());
        draft
    }
}

impl Drop for ModelDrafter {
    fn drop(&mut self) {
        lock(&self.model).end(self.id);
    }
}

/// Settings without biases of tokens that a vocabulary of `width` tokens lacks.
fn with_known_bias(sampling: &Sampling, width: usize) -> Cow<'_, Sampling> {
    let is_known = |bias: &&(u32, f32)| (bias.0 as usize) < width;
    if sampling.bias.iter().all(|bias| is_known(&bias)) {
        return Cow::Borrowed(sampling);
    }
    let bias = sampling.bias.iter().filter(is_known).copied().collect();
    Cow::Owned(Sampling { bias, ..sampling.clone() })
}

/// A model that panicked has failed, and is not used again.
fn lock(model: &Mutex<DraftModel>) -> MutexGuard<'_, DraftModel> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}
