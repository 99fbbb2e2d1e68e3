//! A submitted request that has not ended.

use std::time::{Duration, Instant};

use girih_graph::backend::Range32;

use crate::cache::NearestPrompt;
use crate::hooks::guard;
use crate::latency::TokenLatencies;
use crate::overflow::{self, Overflow};
use crate::position_key::PositionKey;
use crate::prompt_content::{PromptContent, StepContent};
use crate::repetition::RepetitionFinder;
use crate::result_rows::ResultRows;
use crate::sample::{History, Logprobs, PickQuery, SamplerState, logprobs, pick_from, pick_next, refuse_nan};
use crate::scheduler::Demand;
use crate::service::Tenant;
use crate::text::{ReleasedText, StopStrings};
use crate::{
    DraftQuery, Error, ErrorKind, EventKind, HiddenRows, Hooks, RequestEvent, RequestId, Result, Sampling,
    Stats, StepCosts, Stop, TokenRequest,
};

/// A submitted request, its reply so far, and its statistics.
///
/// If the context overflows and the request asks for truncation, the reply consists of
/// several pieces. Each has a prompt of its own: the tokens that stayed.
pub(crate) struct LiveRequest {
    id: RequestId,
    /// The request, without its prompt and stop strings. Its seed, its number of replied
    /// tokens and its number of new tokens are those of the piece.
    request: TokenRequest,
    /// The size of the context.
    context: u32,
    /// The prompt of the piece, then the reply.
    pub tokens: Vec<u32>,
    /// The number of tokens of the piece's prompt.
    prompt: usize,
    content: PromptContent,
    /// The maximum number of tokens to generate in this piece.
    room: usize,
    hooks: Hooks,
    /// One entry per token of the vocabulary, if the request has a constraint.
    allowed: Vec<bool>,
    /// What the samplers keep from token to token. A draft's tokens that are not kept were never
    /// chosen, so they do not change it.
    sampler_state: SamplerState,
    stops: StopStrings,
    /// How tokens are chosen as long as nothing may end the reply, if it has a minimum length.
    early: Option<Box<Sampling>>,
    /// Finds repetitions, if the request asks for it.
    repetition: Option<RepetitionFinder>,
    submitted: Instant,
    /// The largest number of the piece's tokens that the state has held.
    reached: u32,
    /// Whether the request may share only confirmed state, because NaN showed that may have
    /// come from shared state.
    pub needs_confirmed: bool,
    /// Whether the first token of the reply has been chosen.
    begun: bool,
    /// Why the request fails when its next token is chosen.
    failure: Option<Error>,
    /// The latencies of the tokens that `stats.decode` counts.
    latencies: TokenLatencies,
    pub stats: Stats,
}

/// A chosen token, and its log-probabilities if the request asked for them.
pub(crate) type ChosenToken = (u32, Option<Logprobs>);

/// What follows a token.
#[derive(Debug)]
pub(crate) enum Next {
    /// Another token.
    Token,
    /// Another token, after the oldest tokens were dropped.
    Truncation,
    /// The end.
    Stop(Stop),
}

/// Takes the stop strings of a request.
fn stop_strings(request: &mut TokenRequest) -> StopStrings {
    let mut stops = StopStrings::new(std::mem::take(&mut request.stops.strings));
    if request.stop_rules.includes_string {
        stops = stops.including();
    }
    if request.stop_rules.only_where_complete {
        stops = stops.at_marked_places();
    }
    stops
}

/// The sampling of a request that rules out its stop tokens, if it has a minimum length.
fn early_sampling(request: &TokenRequest) -> Option<Box<Sampling>> {
    (request.stop_rules.min_new > 0).then(|| {
        let mut sampling = request.sampling.clone();
        sampling.bias.extend(request.stops.tokens.iter().map(|id| (*id, f32::NEG_INFINITY)));
        Box::new(sampling)
    })
}

impl LiveRequest {
    pub fn new(id: RequestId, mut request: TokenRequest, hooks: Hooks, context: u32) -> LiveRequest {
        let stops = stop_strings(&mut request);
        let early = early_sampling(&request);
        let repetition = request.stop_rules.repetition.map(RepetitionFinder::new);
        let tokens = std::mem::take(&mut request.tokens);
        let (given, spans) = (std::mem::take(&mut request.given), std::mem::take(&mut request.spans));
        let (adapter, images) = (request.adapter, request.images);
        let mut live = LiveRequest {
            id,
            request,
            context,
            tokens,
            prompt: 0,
            content: PromptContent::new(given, spans, adapter),
            room: 0,
            hooks,
            allowed: Vec::new(),
            sampler_state: SamplerState::default(),
            stops,
            early,
            repetition,
            submitted: Instant::now(),
            reached: 0,
            needs_confirmed: false,
            begun: false,
            failure: None,
            latencies: TokenLatencies::default(),
            stats: Stats { images, ..Stats::default() },
        };
        live.fit();
        live
    }

    /// Begins a piece: drops what does not fit, and counts what may follow.
    fn fit(&mut self) {
        let kept = self.request.kept(self.tokens.len(), self.context);
        if kept < self.tokens.len() {
            overflow::cut(&mut self.tokens, kept);
            self.request.replied = self.request.replied.min(kept as u32 - 1);
        }
        self.prompt = self.tokens.len();
        self.room = if self.request.logits { 0 } else { self.request.room(self.prompt, self.context) };
        self.reached = 0;
    }

    /// Drops the oldest tokens, so that the reply continues as a new piece.
    pub fn truncate(&mut self) {
        let generated = self.generated().len() as u32;
        self.request.max_new = self.request.max_new.map(|max| max - generated);
        self.request.replied += generated;
        // With the same seed, each piece would draw the random numbers of the one before.
        self.request.sampling.seed = self.request.sampling.seed.wrapping_add(u64::from(generated));
        self.fit();
    }

    /// The mutual spans of the prompt.
    pub fn spans(&self) -> &[Range32] {
        &self.content.spans
    }

    /// The given rows and mutual spans among these positions, and the adapter.
    pub fn content(&self, positions: Range32) -> StepContent<'_> {
        self.content.part(positions)
    }

    /// What the prefix cache compares for the first `count` tokens.
    pub fn keys(&self, count: usize) -> Vec<PositionKey> {
        self.content.keys(&self.tokens[..count], 0)
    }

    pub fn tenant(&self) -> &Tenant {
        &self.request.tenant
    }

    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Whether the request asks for logits instead of a reply.
    pub fn wants_logits(&self) -> bool {
        self.request.logits
    }

    /// Whether the request ends with its prompt.
    pub fn wants_no_reply(&self) -> bool {
        self.request.max_new == Some(0)
    }

    /// Returns an error if a logit after the last token is NaN.
    pub fn refuse_nan(&self, logits: &[f32]) -> Result<()> {
        refuse_nan(logits, self.tokens.len() - 1)
    }

    /// The number of rows from position `first` on whose next token is one of the prompt that is to
    /// be reported.
    pub fn rows_of_prompt(&self, first: u32) -> usize {
        self.request.prompt_logprobs.map_or(0, |_| (self.prompt - 1).saturating_sub(first as usize))
    }

    /// The events of the prompt's tokens that `rows` predict. The first row is that of position `first`,
    /// so the first event is that of position `first` + 1. The prompt's first token, which no row predicts,
    /// has an event of its own before it if `first` is 0.
    ///
    /// # Errors
    /// When a row, also the last one of the prompt, has NaN or cannot be read.
    pub fn score_prompt(&self, rows: &mut ResultRows<'_>, first: u32) -> Result<Vec<EventKind>> {
        let mut events = Vec::new();
        let Some(top) = self.request.prompt_logprobs.filter(|_| (first as usize) < self.prompt) else {
            return Ok(events);
        };
        for index in 0..rows.len() {
            let (position, row) = (first as usize + index, rows.row(index)?);
            refuse_nan(row, position)?;
            if position == 0 {
                events.push(EventKind::PromptToken { id: self.tokens[0], logprobs: None });
            }
            if position + 1 < self.prompt {
                let id = self.tokens[position + 1];
                events.push(EventKind::PromptToken { id, logprobs: Some(logprobs(row, id, top)) });
            }
        }
        Ok(events)
    }

    fn history(&self) -> History<'_> {
        let (prompt, reply) = self.tokens.split_at(self.prompt - self.request.replied as usize);
        History { prompt, reply }
    }

    /// How the next token is chosen.
    fn sampling(&self) -> &Sampling {
        match &self.early {
            Some(early) if self.generated().len() < self.request.stop_rules.min_new as usize => early,
            _ => &self.request.sampling,
        }
    }

    /// The tokens that the piece has generated.
    fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Whether the next step chooses a token after the piece's first one.
    pub fn is_replying(&self) -> bool {
        !self.generated().is_empty()
    }

    /// Returns an event of this request.
    pub fn event(&self, kind: EventKind) -> RequestEvent {
        RequestEvent { request: self.id, kind }
    }

    /// What the scheduler has to know about the request, submitted at `now`.
    pub fn demand(&self, now: Duration) -> Demand {
        let TokenRequest { time_limits, tenant, priority, .. } = &self.request;
        let rest = self.request.max_new.map_or(usize::MAX, |new| new as usize);
        let longest = match self.request.overflow {
            // Later pieces may fill the context.
            Overflow::Truncate if !self.request.logits && rest > self.room => self.context as usize,
            _ => self.prompt + self.room,
        };
        let deadline = |limit: Option<Duration>| limit.map(|limit| now.saturating_add(limit));
        Demand {
            prompt: self.prompt as u32,
            max_positions: longest as u32,
            prompt_outputs: self.request.prompt_logprobs.is_some(),
            spans: self.spans().to_vec(),
            tenant: tenant.clone(),
            priority: *priority,
            admit_by: deadline(time_limits.queue),
            first_token_by: deadline(time_limits.first_token),
            end_by: deadline(time_limits.whole),
        }
    }

    /// Records that the state already holds the first `cached` tokens, and how far earlier sequences have the prompt.
    pub fn begin(&mut self, cached: u32, nearest: NearestPrompt) {
        if self.reached == 0 {
            self.stats.nearest = nearest;
        }
        self.stats.cached += cached.saturating_sub(self.reached);
        self.reached = self.reached.max(cached);
    }

    /// Counts that the request went back to the queue.
    pub fn count_requeue(&mut self) {
        self.stats.requeued += 1;
    }

    /// Counts a step that ran these positions, for a token of the reply if `replying`.
    /// Positions that the state had held before count as repeated, with their share of the
    /// time.
    pub fn count(&mut self, positions: Range32, replying: bool, time: Duration) {
        let rows = positions.end - positions.start;
        let repeated = self.reached.saturating_sub(positions.start).min(rows);
        // No row counts if the state cannot hold the first one.
        let part = time * repeated / rows.max(1);
        self.reached = self.reached.max(positions.end);
        let Stats { prefill, decode, repeated: again, .. } = &mut self.stats;
        again.add(repeated, part);
        if replying { decode } else { prefill }.add(rows - repeated, time - part);
        if replying {
            self.latencies.add(rows - repeated, time - part);
        }
    }

    /// Records the first token of the reply; returns the event if this is the first call.
    pub fn prefilled(&mut self) -> Option<RequestEvent> {
        if std::mem::replace(&mut self.begun, true) {
            return None;
        }
        self.stats.first_token = self.stats.images.time + self.submitted.elapsed();
        Some(self.event(EventKind::Prefilled(self.stats)))
    }

    /// The maximum number of tokens of a draft: the last token of the piece needs no row.
    pub fn draft_room(&self) -> usize {
        match self.hooks.drafter {
            Some(_) if self.is_replying() => (self.room - self.generated().len()).saturating_sub(1),
            _ => 0,
        }
    }

    /// Returns the last token and at most `max` tokens that may follow it; empty if there
    /// is no draft. If the drafter panics, the request fails when its next token is chosen.
    pub fn draft(&mut self, max: u32, other_rows: u32, vocabulary: usize, costs: &StepCosts) -> Vec<u32> {
        let replied = self.history().reply.len();
        let sampling = &self.request.sampling;
        let query = DraftQuery { tokens: &self.tokens, replied, sampling, max, other_rows, costs };
        let Some(drafter) = &mut self.hooks.drafter else { return Vec::new() };
        let drafted = guard("the request's drafter", || drafter.draft(query));
        let mut draft = drafted.unwrap_or_else(|error| {
            self.failure = Some(error);
            Vec::new()
        });
        draft.truncate(max as usize);
        let outside = draft.iter().position(|id| *id as usize >= vocabulary);
        draft.truncate(outside.unwrap_or(draft.len()));
        if !draft.is_empty() {
            draft.splice(..0, self.tokens.last().copied());
        }
        draft
    }

    /// Whether its drafter reads hidden states of its rows.
    pub fn reads_rows(&self) -> bool {
        let has_reply = !self.wants_logits() && !self.wants_no_reply();
        has_reply && self.hooks.drafter.as_ref().is_some_and(|drafter| drafter.reads_rows())
    }

    /// Passes hidden states of the rows from position `first` on to its drafter. If that panics, the request fails when
    /// its next token is chosen.
    pub fn read_rows(&mut self, first: u32, width: usize, values: &[f32]) {
        let Some(drafter) = &mut self.hooks.drafter else { return };
        let rows = HiddenRows { tokens: &self.tokens, first, width, values };
        if let Err(error) = guard("the request's drafter", || drafter.read(rows)) {
            self.failure = Some(error);
        }
    }

    /// Returns the last event of a request that was not admitted in time.
    pub fn fail_in_queue(self) -> RequestEvent {
        let limit = self.request.time_limits.queue.unwrap_or_default();
        let sentence = format!(
            "the request has waited {:.0} s for its turn, which is the maximum; try again later",
            limit.as_secs_f64()
        );
        self.event(EventKind::Failed(Error::with_kind(ErrorKind::WaitTooLong, sentence)))
    }

    /// Makes the request fail when its next token is chosen.
    pub fn fail(&mut self, error: Error) {
        self.failure = Some(error);
    }

    /// Chooses the next token from row `index` of the results.
    ///
    /// # Errors
    /// When a hook or the device failed, else as [`pick`].
    pub fn choose(&mut self, rows: &mut ResultRows<'_>, index: usize) -> Result<ChosenToken> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if let Some(id) = self.choose_from_picks(rows, index)? {
            if let Some(constraint) = &mut self.hooks.constraint {
                constraint.accept(id)?;
            }
            return Ok((id, None));
        }
        let logits = rows.row(index)?;
        let is_constrained = self.is_constrained();
        self.allowed.clear();
        if let Some(constraint) = self.hooks.constraint.as_mut().filter(|_| is_constrained) {
            self.allowed.resize(logits.len(), true);
            constraint.mask(&mut self.allowed)?;
        }
        // What a stop token may follow is complete.
        if self.request.stops.tokens.iter().any(|id| self.allowed.get(*id as usize) == Some(&true)) {
            self.stops.may_begin_here();
        }
        let mut state = self.sampler_state;
        let allowed = is_constrained.then_some(&*self.allowed);
        let id = pick_next(logits, allowed, self.sampling(), self.history(), &mut state)?;
        self.sampler_state = state;
        if let Some(constraint) = &mut self.hooks.constraint {
            constraint.accept(id)?;
        }
        Ok((id, self.request.logprobs.map(|top| logprobs(logits, id, top))))
    }

    /// Chooses the next token from the largest logits of row `index`, if the request and the
    /// device allow it: `None` if the whole row is needed.
    fn choose_from_picks(&self, rows: &mut ResultRows<'_>, index: usize) -> Result<Option<u32>> {
        let needs_row = self.is_constrained() || self.request.logprobs.is_some();
        let max = if needs_row { 0 } else { rows.max_picks() };
        let (sampling, history) = (self.sampling(), self.history());
        let Some(query) = PickQuery::of(sampling, history, max) else { return Ok(None) };
        let picks = rows.picks(index, query.top, &query.asked)?;
        pick_from(&picks, &query, sampling, history)
    }

    /// Whether the next token is one of those that a constraint allows.
    fn is_constrained(&self) -> bool {
        self.hooks.constraint.as_ref().is_some_and(|constraint| !constraint.allows_all())
    }

    /// Whether a token ends the reply.
    pub fn is_stop(&self, id: u32) -> bool {
        self.request.stops.tokens.contains(&id)
    }

    /// Appends a token to the reply; returns its event, and what follows.
    pub fn append(&mut self, (id, logprobs): ChosenToken) -> (EventKind, Next) {
        self.tokens.push(id);
        let detokenizer = self.hooks.detokenizer.as_mut();
        let text = detokenizer.map_or_else(String::new, |detokenizer| detokenizer.push(id));
        let ReleasedText { text, stop } =
            match self.generated().len() <= self.request.stop_rules.min_new as usize {
                true => self.stops.push_unstopped(&text),
                false => self.stops.push(&text),
            };
        let repeats = self.repetition.as_mut().is_some_and(|finder| finder.push(id));
        let is_complete = self.hooks.constraint.as_ref().is_some_and(|constraint| constraint.is_complete());
        let next = match stop {
            Some(stop) => Next::Stop(Stop::String(stop)),
            None if is_complete => Next::Stop(Stop::Complete),
            None if repeats => Next::Stop(Stop::Repetition),
            None if self.generated().len() < self.room => Next::Token,
            None => self.limit(),
        };
        (EventKind::Token { id, text, logprobs }, next)
    }

    /// What follows a piece that has its maximum length.
    fn limit(&self) -> Next {
        match (self.request.overflow, self.request.max_new) {
            (Overflow::Truncate, Some(max)) if self.generated().len() < max as usize => Next::Truncation,
            (_, Some(_)) => Next::Stop(Stop::Length),
            (_, None) => Next::Stop(Stop::Context),
        }
    }

    /// Returns the last event, with the text that was held back. After a stop string there
    /// is no such text, because nothing that follows it is shown. A stop string that ends in the text
    /// which the detokenizer held back is why the reply ended.
    pub fn finish(mut self, mut stop: Stop) -> RequestEvent {
        let mut text = String::new();
        if !matches!(stop, Stop::String(_)) {
            let rest = match self.hooks.detokenizer.take() {
                Some(detokenizer) => guard("the request's detokenizer", || detokenizer.finish()),
                None => Ok(String::new()),
            };
            match rest {
                Ok(rest) => {
                    let released = self.stops.push(&rest);
                    text = released.text;
                    match released.stop {
                        Some(found) => stop = Stop::String(found),
                        None => text.push_str(&std::mem::take(&mut self.stops).finish()),
                    }
                }
                Err(error) => return self.event(EventKind::Failed(error)),
            }
        }
        self.stats.whole = self.stats.images.time + self.submitted.elapsed();
        let latencies = std::mem::take(&mut self.latencies);
        self.event(EventKind::Finished { stop, text, stats: self.stats, latencies })
    }
}
