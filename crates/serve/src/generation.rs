//! Generation as no API in particular means it: a checked request in, a stream of events out.
//!
//! A module of `api` makes a [`GenerationRequest`] and calls [`begin`]; it then reads events from
//! the [`Generation`], whole ([`Generation::next_events`]) or as a body ([`crate::sse`]). Dropping
//! a generation cancels its replies within one step of the model.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use girih::{
    Conversation, ErrorKind, Event, Grammar, ImagePatches, InfillFile, Logprobs, Model, Priority, Prompt,
    RepetitionRule, Reply, ReplyPart, Request, Sampling, Session, Stats, Stop, Tenant, TimeLimits,
    ToolChoice,
};

use crate::background::in_background;
use crate::body_room::BodyRoom;
use crate::cache_reports::{CacheReport, KeptReport};
use crate::calendar::since_1970;
use crate::call_ids::CallIds;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::find_model::find_model;
use crate::images::{decoded, first_image, first_video, take_images};
use crate::keep_alive::KeepAlive;
use crate::models::ListedModel;
use crate::observe::{ReplyRecord, RequestRecord};
use crate::parameters::ParameterNotes;
use crate::ready_session::ready_session;
use crate::reply_rules::ReplyRules;
use crate::request_hook::RequestHook;
use crate::sampling_settings::{SamplingSettings, check_ranges};
use crate::state::{Admission, ServerState};
use crate::template_fault;
use crate::thinking::{Thinking, ThinkingLimit, set_verbosity};

/// The maximum number of log-probabilities of the prompts of a request, a megabyte for each ten thousand.
const MAX_PROMPT_LOGPROBS: u64 = 500_000;

/// A request for replies.
#[derive(Clone, Debug, Default)]
pub struct GenerationRequest {
    /// The model's name; `None` for the first one.
    pub model: Option<String>,
    /// The adapter of the model, if its name is that of one.
    pub adapter: Option<String>,
    /// What is continued or answered. Each prompt gets `count` replies.
    pub prompts: Vec<Prompt>,
    /// The number of replies to each prompt, at least 1; their seeds follow each other.
    pub count: u32,
    /// How tokens are chosen.
    pub sampling: SamplingSettings,
    /// The maximum number of tokens of a reply; it is lowered to what the context leaves. `None`
    /// for that much.
    pub max_tokens: Option<u32>,
    /// The number of tokens before which nothing ends a reply.
    pub min_tokens: u32,
    /// Tokens that end a reply beside the model's own.
    pub stop_tokens: Vec<u32>,
    /// Whether a reply ends after its stop string and not before it.
    pub includes_stop: bool,
    /// If set, a reply is the text between its prompt, a text, and this one.
    pub suffix: Option<String>,
    /// Other files that stand before a prompt with a suffix.
    pub infill_files: Vec<InfillFile>,
    /// If set, only this number of last tokens of a prompt are kept.
    pub prompt_end: Option<u32>,
    /// Whether it comes after other requests of its tenant.
    pub is_late: bool,
    /// Whether a reply goes on where the model would end it.
    pub ignore_eos: bool,
    /// Texts that end a reply.
    pub stops: Vec<String>,
    /// If set, tokens come with their log-probability and those of this number of most likely tokens.
    pub logprobs: Option<u32>,
    /// If set, the tokens of the prompt come as events, with their log-probability and those of this
    /// number of most likely tokens. `max_tokens` may be 0 then.
    pub prompt_logprobs: Option<u32>,
    /// What a reply must be.
    pub grammar: Option<Grammar>,
    /// Whether a reply must be a call of a tool.
    pub tool_choice: ToolChoice,
    /// Whether a reply ends after its first call of a tool.
    pub single_call: bool,
    /// How much the model thinks; `None` for its default.
    pub thinking: Option<Thinking>,
    /// How long the model stays loaded after the request.
    pub keep_alive: Option<KeepAlive>,
    /// The maximum number of tokens of thinking.
    pub thinking_limit: Option<ThinkingLimit>,
    /// When a reply ends because it repeats itself.
    pub repetition: Option<RepetitionRule>,
    /// How much the model says, a word that its chat template may know.
    pub verbosity: Option<String>,
    /// What had no effect.
    pub notes: Arc<ParameterNotes>,
}

/// What happens to a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationEvent {
    /// The number of the reply: replies to the first prompt come first.
    pub choice: u32,
    /// What happens.
    pub kind: GenerationEventKind,
}

/// What can happen to a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEventKind {
    /// A token of the prompt; these events come first, if the request asked for them.
    PromptToken {
        /// Its id.
        id: u32,
        /// Absent for the first one, which follows nothing.
        logprobs: Option<Logprobs>,
    },
    /// The whole prompt has been run.
    Prefilled,
    /// A token.
    Token {
        /// Its id.
        id: u32,
        /// What its text completes, which is often nothing.
        parts: Vec<ReplyPart>,
        /// Present if the request asked for them.
        logprobs: Option<Logprobs>,
    },
    /// The reply is complete: its last event.
    Finished {
        /// What was held back until now.
        parts: Vec<ReplyPart>,
        /// Why it ended.
        reason: FinishReason,
        /// Counts and times; zeros if the reply ended after its first call.
        stats: Stats,
    },
    /// The reply failed, its last event; the other replies of the request go on. A request for one
    /// reply fails as a whole instead.
    Failed(ApiError),
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or its grammar is complete.
    End,
    /// Its text reached this stop string.
    StopString(String),
    /// It has the maximum number of tokens, or the context is full.
    Length,
    /// The model ended it after at least one complete call of a tool.
    ToolCalls,
    /// It repeats itself.
    Repetition,
}

impl FinishReason {
    /// Whether the reply may have ended within a call of a tool.
    pub fn may_cut_calls(&self) -> bool {
        matches!(self, FinishReason::Length | FinishReason::StopString(_) | FinishReason::Repetition)
    }

    /// OpenAI's word for it, also in metrics and the log.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::End | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Repetition => "repetition",
        }
    }
}

/// The tokens of a request, of all its replies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompts, each prompt counted once.
    pub prompt: u32,
    /// Those of them that were in the prefix cache, as the first reply to each prompt found them.
    pub cached: u32,
    /// Tokens of the replies so far.
    pub reply: u32,
    /// Those of them that are thinking.
    pub thinking: u32,
}

/// Replies in progress.
pub struct Generation {
    choices: Vec<LiveReply>,
    failures: Failures,
    usage: TokenUsage,
    /// The model.
    pub model: Model,
    /// What runs the replies, and for whom.
    session: Session,
    tenant: Tenant,
    /// What shows why the prompt was not cached.
    cache: CacheWatch,
    /// Its name in the APIs.
    pub model_name: Arc<str>,
    /// How long the request waited for the model to be loaded.
    pub load_time: Duration,
    _admission: Admission,
}

/// Reports how much of a request's first prompt was cached.
struct CacheWatch {
    state: Arc<ServerState>,
    notes: Arc<ParameterNotes>,
    record: Option<Arc<RequestRecord>>,
}

impl CacheWatch {
    /// The prompt of the first reply has been run.
    fn prefilled(&self, reply: &Reply, stats: &Stats, model: &str, tenant: &Tenant) {
        let (tokens, map) = (reply.prompt_tokens(), reply.prompt_map());
        let report = CacheReport::new(tokens, stats, map, self.state.logs_prompts);
        self.notes.set_cache(report.header());
        if let Some(record) = &self.record {
            record.facts().cache = Some(report.to_string());
        }
        let kept = KeptReport { model: model.to_owned(), time: since_1970().as_secs(), report };
        self.state.cache_reports.add(tenant, kept);
    }
}

/// The replies that failed.
#[derive(Default)]
struct Failures {
    count: usize,
    /// The error of the request if all replies fail.
    first: Option<ApiError>,
    /// Events that wait until a reply begins: before, the request may fail as a whole.
    held: Vec<GenerationEvent>,
    /// Whether a reply has begun.
    has_begun: bool,
}

/// One reply in progress.
struct LiveReply {
    /// `None` when it is over.
    reply: Option<Reply>,
    /// Whether its prompt counts as cached or not: it is the first reply to the prompt.
    is_first: bool,
    single_call: bool,
    call_ids: CallIds,
    /// Whether a call is complete.
    has_called: bool,
    is_thinking: bool,
    record: Option<ReplyRecord>,
}

/// Admits a request, loads its model if necessary, and queues its replies. The room of the request's body is free then: the
/// caller must have dropped the body, which the reply may outlast by far.
///
/// # Errors
/// When there is no such model, a parameter is wrong, the queue is full or the server ends.
pub async fn begin(
    state: &Arc<ServerState>,
    caller: &ApiCaller,
    mut request: GenerationRequest,
) -> Result<Generation, ApiError> {
    let model = &*model_of(state, &mut request).await?;
    let prompts = u32::try_from(request.prompts.len()).unwrap_or(u32::MAX);
    let admission = state.admit(model, caller, prompts.saturating_mul(request.count))?;
    if let Some(keep) = request.keep_alive {
        state.models.keep(&model.name, keep);
    }
    let record = RequestRecord::current();
    let begun = Instant::now();
    let session = ready_session(state, model).await?;
    let load_time = begun.elapsed();
    let turns = turns(state, caller, model, &mut request).await?;
    let client = Arc::new(());
    let there = Arc::downgrade(&client);
    let (name, state, caller) = (model.id().to_owned(), Arc::clone(state), caller.clone());
    // Chat templates and grammars take time that other connections must not wait for.
    let generation = in_background(move || {
        let _turns = turns;
        let cache = CacheWatch { state, notes: Arc::clone(&request.notes), record };
        let generation = request.queue(&session, name.into(), &caller, admission, cache, &there)?;
        Ok(Generation { load_time, ..generation })
    })
    .await;
    // If the client leaves, it is dropped before.
    drop(client);
    // What the body said is in the replies; callers drop the rest before.
    BodyRoom::free_current();
    generation
}

/// The model that a request asks for, which reads what its prompts have. Completes the request with what the server
/// decides.
pub(crate) async fn model_of(
    state: &Arc<ServerState>,
    request: &mut GenerationRequest,
) -> Result<Arc<ListedModel>, ApiError> {
    request.notes = ParameterNotes::current();
    request.follow(&state.reply_rules);
    let model = find_model(state, request.model.as_deref()).await?;
    if let Some(param) = first_video(&request.prompts) {
        model.check_reads_videos(param)?;
    }
    if let Some(param) = first_image(&request.prompts) {
        model.check_reads_images(param)?;
    }
    request.adapter.clone_from(&model.adapter);
    Ok(model)
}

/// Fetches the images of a request and waits for its turns to be prepared, which end with the result.
pub(crate) async fn turns(
    state: &Arc<ServerState>,
    caller: &ApiCaller,
    model: &ListedModel,
    request: &mut GenerationRequest,
) -> Result<impl Send + use<>, ApiError> {
    // Before its turn, for which others wait.
    let fetched = state.fetching_images.fetch(model, &caller.tenant, &mut request.prompts).await?;
    Ok((model.turns(first_image(&request.prompts).is_some()).await?, fetched))
}

/// The error of a request. If its template fails because of the variables in `varied`, the error names them.
pub(crate) fn of_template(error: girih::Error, model: &Model, varied: Option<&Conversation>) -> ApiError {
    match varied {
        Some(conversation) => template_fault::of_variables(error, model, conversation),
        None => error.into(),
    }
}

/// What the requests of all prompts of a request share.
pub(crate) struct PromptContext<'a> {
    pub model: &'a Model,
    pub sampling: Sampling,
    pub tenant: &'a Tenant,
    pub hook: Option<&'a RequestHook>,
    /// Is gone when the client is.
    pub client: &'a Weak<()>,
}

/// The request of one prompt, and what its replies need beside it.
pub(crate) struct PromptRequest {
    pub request: Request,
    /// The conversation, if it sets variables of its template.
    pub varied: Option<Conversation>,
    /// Those of each reply.
    pub call_ids: Vec<CallIds>,
}

/// The error of a request that gets no place; it says when there is one.
fn refusal(error: girih::Error, session: &Session, tenant: &Tenant) -> ApiError {
    let kind = error.kind();
    let error = ApiError::from(error);
    match kind {
        ErrorKind::DeviceFailed if session.has_ended() => return ApiError::engine_failed(),
        ErrorKind::WaitTooLong => ApiError { code: "expected_wait_exceeded", ..error },
        ErrorKind::QueueFull => error,
        _ => return error,
    }
    .retry_after(session.expected_wait(tenant))
}

/// The prompt, and the images that its messages held, unless the `client` has left.
fn with_images(
    mut prompt: Prompt,
    model: &Model,
    notes: &ParameterNotes,
    client: &Weak<()>,
) -> Result<(Prompt, Vec<ImagePatches>), ApiError> {
    let images = match &mut prompt {
        Prompt::Conversation(conversation) => {
            decoded(take_images(conversation)?, model, notes, || client.strong_count() > 0)?
        }
        Prompt::Text(_) | Prompt::Tokens(_) => Vec::new(),
    };
    Ok((prompt, images))
}

/// The request, whose images are given up when the `client` leaves.
fn wanted_by(client: &Weak<()>, request: Request) -> Request {
    let client = client.clone();
    request.while_wanted(move || client.strong_count() > 0)
}

impl GenerationRequest {
    /// Sets what the server decides for all replies.
    fn follow(&mut self, rules: &ReplyRules) {
        let own = rules.max_thinking.map(|tokens| ThinkingLimit { param: None, tokens });
        self.thinking_limit = match (self.thinking_limit, own) {
            (Some(asked), Some(own)) if own.tokens < asked.tokens => Some(own),
            (asked, own) => asked.or(own),
        };
        self.repetition = rules.repetition;
    }

    /// Queues the replies.
    fn queue(
        mut self,
        session: &Session,
        model_name: Arc<str>,
        caller: &ApiCaller,
        admission: Admission,
        cache: CacheWatch,
        client: &Weak<()>,
    ) -> Result<Generation, ApiError> {
        let record = cache.record.as_ref();
        let state = Arc::clone(&cache.state);
        let model = session.model().clone();
        let prompts = std::mem::take(&mut self.prompts);
        let sampling = self.checked_sampling(&model)?;
        let (tenant, hook) = (&caller.tenant, state.request_hook.as_ref());
        let context = PromptContext { model: &model, sampling, tenant, hook, client };
        let mut choices = Vec::new();
        let mut usage = TokenUsage::default();
        for (index, prompt) in prompts.into_iter().enumerate() {
            let PromptRequest { request, varied, call_ids } = self.of_prompt(prompt, index == 0, &context)?;
            let replies = session.generate_several(request, self.count);
            let replies = replies.map_err(|error| match error.kind() {
                ErrorKind::Other => of_template(error, &model, varied.as_ref()),
                _ => refusal(error, session, &caller.tenant),
            })?;
            for (number, reply) in replies.into_iter().enumerate() {
                if number == 0 {
                    usage.prompt = usage.prompt.saturating_add(reply.prompt_tokens());
                    self.check_prompt_logprobs(usage.prompt)?;
                }
                choices.push(LiveReply {
                    reply: Some(reply),
                    is_first: number == 0,
                    single_call: self.single_call,
                    call_ids: call_ids[number].clone(),
                    has_called: false,
                    is_thinking: false,
                    record: record.map(|record| ReplyRecord::new(record, &model_name, number == 0)),
                });
            }
        }
        let handles = choices.iter().flat_map(|choice| &choice.reply).map(Reply::cancel_handle);
        admission.set_handles(handles.collect());
        let (session, tenant, load_time) = (session.clone(), caller.tenant.clone(), Duration::ZERO);
        Ok(Generation {
            choices,
            failures: Failures::default(),
            usage,
            model,
            session,
            tenant,
            cache,
            model_name,
            load_time,
            _admission: admission,
        })
    }

    /// How tokens of `model` are chosen.
    pub(crate) fn checked_sampling(&self, model: &Model) -> Result<Sampling, ApiError> {
        let mut sampling = self.sampling.over(model)?;
        check_ranges(&sampling)?;
        if self.ignore_eos {
            sampling.bias.extend(model.stop_tokens()?.into_iter().map(|id| (id, f32::NEG_INFINITY)));
        }
        Ok(sampling)
    }

    /// The request of one of the prompts.
    pub(crate) fn of_prompt(
        &self,
        prompt: Prompt,
        is_first: bool,
        context: &PromptContext<'_>,
    ) -> Result<PromptRequest, ApiError> {
        let PromptContext { model, sampling, tenant, hook, client } = context;
        let (prompt, images) = with_images(prompt, model, &self.notes, client)?;
        let (prompt, infill_stops) = self.with_suffix(prompt, model)?;
        let prompt = self.with_thinking(prompt, model)?;
        let varied = match &prompt {
            Prompt::Conversation(conversation) if !conversation.variables.is_empty() => {
                Some(conversation.clone())
            }
            _ => None,
        };
        let call_ids = (0..self.count).map(|number| CallIds::of(&prompt, number)).collect();
        let hooked = hook.map(|hook| (hook, prompt.clone()));
        let request = wanted_by(client, self.request(prompt, infill_stops).images(images));
        let mut request = request.sampling(sampling.clone()).tenant((*tenant).clone());
        if !is_first {
            // It waits for the prompts before it, which belong to the same client.
            request = request.time_limits(TimeLimits { queue: Some(Duration::MAX), ..TimeLimits::default() });
        }
        if let Some((hook, prompt)) = hooked {
            request = hook.changed(model, &prompt, request);
        }
        Ok(PromptRequest { request, varied, call_ids })
    }

    /// Refuses log-probabilities of `tokens` tokens of prompts if they would take too much memory.
    pub(crate) fn check_prompt_logprobs(&self, tokens: u32) -> Result<(), ApiError> {
        let Some(top) = self.prompt_logprobs else { return Ok(()) };
        let count = u64::from(tokens) * (u64::from(top) + 1) * u64::from(self.count);
        if count <= MAX_PROMPT_LOGPROBS {
            return Ok(());
        }
        let message = format!(
            "echo with logprobs asks for {count} or more log-probabilities of the prompts; the maximum is \
             {MAX_PROMPT_LOGPROBS}: send fewer tokens, or ask for fewer per token"
        );
        Err(ApiError::invalid("logprobs", message))
    }

    /// The request of a prompt, whose reply also ends with `infill_stops`, unless it has a grammar.
    fn request(&self, prompt: Prompt, infill_stops: Vec<u32>) -> Request {
        let thinks = matches!(prompt, Prompt::Conversation(_));
        let mut request = Request::new(prompt).tool_choice(self.tool_choice.clone());
        if let Some(adapter) = &self.adapter {
            request = request.adapter(adapter);
        }
        if let Some(limit) = self.thinking_limit.filter(|_| thinks) {
            request = request.thinking_budget(limit.tokens);
        }
        if self.grammar.is_none() {
            request = infill_stops.into_iter().fold(request, Request::stop_token);
        }
        let mut request = match self.max_tokens {
            Some(max) => request.max_tokens(max).cut_to_context(),
            None => request.fill_context(),
        };
        for stop in &self.stops {
            request = request.stop(stop);
        }
        for id in &self.stop_tokens {
            request = request.stop_token(*id);
        }
        if self.min_tokens > 0 {
            request = request.min_tokens(self.min_tokens);
        }
        if self.includes_stop {
            request = request.include_stop();
        }
        if let Some(tokens) = self.prompt_end {
            request = request.prompt_end(tokens);
        }
        if let Some(rule) = self.repetition {
            request = request.stop_repetition(rule);
        }
        if self.is_late {
            request = request.priority(Priority::Low);
        }
        if let Some(top) = self.logprobs {
            request = request.logprobs(top);
        }
        if let Some(top) = self.prompt_logprobs {
            request = request.prompt_logprobs(top);
        }
        match &self.grammar {
            Some(grammar) => request.grammar(grammar.clone()),
            None => request,
        }
    }

    /// The prompt, and the tokens that end a reply before the suffix, if there is one.
    fn with_suffix(&self, prompt: Prompt, model: &Model) -> Result<(Prompt, Vec<u32>), ApiError> {
        let Some(suffix) = &self.suffix else { return Ok((prompt, Vec::new())) };
        let Prompt::Text(before) = prompt else {
            let message =
                "suffix needs a prompt that is a text, as the model's own tokens stand between both";
            return Err(ApiError::invalid("suffix", message));
        };
        let infill = model.text_processor()?.infill_prompt(&before, suffix, &self.infill_files);
        let infill = infill.map_err(|error| {
            let is_refusal = error.kind() == ErrorKind::Refused;
            let error = ApiError::from(error);
            if is_refusal { ApiError { param: Some("suffix".to_owned()), ..error } } else { error }
        })?;
        Ok((Prompt::Tokens(infill.tokens), infill.stops))
    }

    /// The prompt with the variable by which its template knows how much to think.
    fn with_thinking(&self, mut prompt: Prompt, model: &Model) -> Result<Prompt, ApiError> {
        if let (Some(word), Prompt::Conversation(conversation)) = (&self.verbosity, &mut prompt) {
            set_verbosity(word, conversation, model, &self.notes)?;
        }
        match (&self.thinking, &mut prompt) {
            (None, _) => {}
            (Some(thinking), Prompt::Conversation(conversation)) => {
                if let Some(why) = thinking.apply(conversation, model)? {
                    self.notes.add(thinking.param, why);
                }
            }
            (Some(thinking), _) => return Err(thinking.without_template()),
        }
        if let (Some(limit), Prompt::Conversation(conversation)) = (self.thinking_limit, &prompt)
            && let Some(param) = limit.param
            && let Some(why) = limit.lack(conversation, model)?
        {
            self.notes.add(param, why);
        }
        Ok(prompt)
    }
}

impl Generation {
    /// The name of the arithmetic of its model.
    pub fn arithmetic(&self) -> &str {
        self.session.arithmetic()
    }

    /// Waits for events, and returns those that are there; `None` at the end.
    ///
    /// # Errors
    /// When all replies have failed: that of the first one. The generation is then over.
    pub async fn next_events(&mut self) -> Option<Result<Vec<GenerationEvent>, ApiError>> {
        let mut events = Vec::new();
        let outcome = poll_fn(|context| self.poll_events(context, &mut events)).await?;
        Some(outcome.map(|()| events))
    }

    /// Adds the events that are there, of all replies; pending if there are none. `None` at the end.
    ///
    /// # Errors
    /// As [`Generation::next_events`].
    pub fn poll_events(
        &mut self,
        context: &mut Context<'_>,
        events: &mut Vec<GenerationEvent>,
    ) -> Poll<Option<Result<(), ApiError>>> {
        let before = events.len();
        let mut is_open = false;
        for number in 0..self.choices.len() {
            if let Err(error) = self.poll_choice(number, context, events) {
                self.fail(number, error);
            }
            is_open |= self.choices[number].reply.is_some();
        }
        let failures = &mut self.failures;
        failures.has_begun |= events.len() > before;
        if failures.has_begun {
            events.append(&mut failures.held);
        }
        match (events.len() > before, is_open) {
            (true, _) => Poll::Ready(Some(Ok(()))),
            (false, true) => Poll::Pending,
            (false, false) if failures.count == self.choices.len() => {
                Poll::Ready(failures.first.take().map(Err))
            }
            (false, false) => Poll::Ready(None),
        }
    }

    /// Ends a reply that failed.
    fn fail(&mut self, number: usize, error: ApiError) {
        self.choices[number].reply = None;
        self.failures.count += 1;
        self.failures.first.get_or_insert_with(|| error.clone());
        if self.choices.len() > 1 {
            let kind = GenerationEventKind::Failed(error);
            self.failures.held.push(GenerationEvent { choice: number as u32, kind });
        }
    }

    /// The tokens so far.
    pub fn usage(&self) -> TokenUsage {
        self.usage
    }

    /// The number of replies.
    pub fn replies(&self) -> usize {
        self.choices.len()
    }

    fn poll_choice(
        &mut self,
        number: usize,
        context: &mut Context<'_>,
        events: &mut Vec<GenerationEvent>,
    ) -> Result<(), ApiError> {
        let Generation { choices, usage, session, tenant, cache, model_name, .. } = self;
        let choice = &mut choices[number];
        let event = |kind| GenerationEvent { choice: number as u32, kind };
        while let Some(reply) = &mut choice.reply {
            let Poll::Ready(read) = reply.poll(context) else { break };
            let read = read.expect("a reply that is not over has an event");
            let read = read.map_err(|error| {
                choice.note_end("error", &Stats::default());
                match error.kind() {
                    ErrorKind::WaitTooLong => {
                        ApiError::from(error).retry_after(session.expected_wait(tenant))
                    }
                    // A reply that is cancelled ends with an event.
                    ErrorKind::Cancelled => ApiError::unread(),
                    ErrorKind::DeviceFailed if session.has_ended() => ApiError::engine_failed(),
                    _ => ApiError::from(error),
                }
            });
            match read? {
                Event::PromptToken { id, logprobs } => {
                    events.push(event(GenerationEventKind::PromptToken { id, logprobs }));
                }
                Event::Prefilled(stats) => {
                    if let Some(record) = &mut choice.record {
                        record.prefilled(&stats);
                    }
                    if let (0, Some(reply)) = (number, &choice.reply) {
                        cache.prefilled(reply, &stats, model_name, tenant);
                    }
                    if choice.is_first {
                        usage.cached = usage.cached.saturating_add(stats.cached);
                    }
                    events.push(event(GenerationEventKind::Prefilled));
                }
                Event::Token { id, logprobs, mut parts, .. } => {
                    choice.call_ids.replace(&mut parts);
                    let is_over = choice.count(&mut parts, usage);
                    usage.reply = usage.reply.saturating_add(1);
                    if let Some(record) = &mut choice.record {
                        record.token();
                    }
                    events.push(event(GenerationEventKind::Token { id, parts, logprobs }));
                    if is_over {
                        choice.reply = None;
                        let (parts, reason) = (Vec::new(), FinishReason::ToolCalls);
                        let stats = Stats::default();
                        choice.note_end(reason.name(), &stats);
                        events.push(event(GenerationEventKind::Finished { parts, reason, stats }));
                    }
                }
                Event::Finished { stop, stats, mut parts, .. } => {
                    choice.reply = None;
                    choice.call_ids.replace(&mut parts);
                    choice.note_calls(&mut parts);
                    let reason = choice.reason(stop);
                    choice.note_end(reason.as_ref().map_or("abort", FinishReason::name), &stats);
                    let reason = reason?;
                    events.push(event(GenerationEventKind::Finished { parts, reason, stats }));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl LiveReply {
    /// Notes what a token's parts are; returns whether the reply ends with them.
    fn count(&mut self, parts: &mut Vec<ReplyPart>, usage: &mut TokenUsage) -> bool {
        let thinks = |part: &ReplyPart| matches!(part, ReplyPart::Thinking(_));
        if parts.iter().any(thinks) || (parts.is_empty() && self.is_thinking) {
            usage.thinking = usage.thinking.saturating_add(1);
        }
        if let Some(last) = parts.last() {
            self.is_thinking = thinks(last);
        }
        self.note_calls(parts)
    }

    /// Notes complete calls; removes what follows the first one if it is to be the only one.
    fn note_calls(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let end = parts.iter().position(|part| matches!(part, ReplyPart::CallEnd { .. }));
        self.has_called |= end.is_some();
        match end {
            Some(end) if self.single_call => {
                parts.truncate(end + 1);
                true
            }
            _ => false,
        }
    }

    /// Notes why the reply ended.
    fn note_end(&mut self, reason: &'static str, stats: &Stats) {
        if let Some(record) = &mut self.record {
            record.finished(reason, stats);
        }
    }

    fn reason(&self, stop: Stop) -> Result<FinishReason, ApiError> {
        Ok(match stop {
            Stop::Token(_) | Stop::Complete if self.has_called => FinishReason::ToolCalls,
            Stop::Token(_) | Stop::Complete => FinishReason::End,
            Stop::String(text) => FinishReason::StopString(text),
            Stop::Length | Stop::Context => FinishReason::Length,
            Stop::Repetition => FinishReason::Repetition,
            // Only the server cancels a reply that is still read.
            Stop::Cancelled => return Err(ApiError::shutting_down()),
            Stop::Deadline => return Err(ApiError::timed_out()),
        })
    }
}
