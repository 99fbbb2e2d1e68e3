//! A request for one reply, and its translation into tokens for the engine.

pub(crate) mod checked;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use girih_engine::{
    Constraint, Drafter, Overflow, Priority, RepetitionRule, Sampling, StopRules, Tenant, TimeLimits,
};
use girih_graph::{Error, ErrorKind, Result};
use girih_words::BosEos;

use crate::image::ImagePatches;
use crate::image_prompt::expanded;
use crate::model::Model;
use crate::prompt::Prompt;
use crate::prompt_map::PromptMap;
use crate::reply_format::ReplyFormat;

/// The maximum number of tokens of a reply if the request sets none.
const DEFAULT_MAX_TOKENS: u32 = 256;

/// The maximum number of replies to one request.
const MAX_REPLIES: u32 = 128;

/// Where the parts of a conversation lie in its prompt; `None` for other prompts.
type PromptPlaces = Option<Arc<PromptMap>>;

/// A request for one reply: a prompt, and settings that all have defaults.
///
/// ```
/// use girih::{Model, Request, Sampling};
///
/// let session = Model::open("stories260k")?.start()?;
/// let request = Request::new("Once upon a time").max_tokens(8).stop(".");
/// let story = session.generate(request)?.text()?;
/// assert!(!story.contains('.'));
/// # Ok::<(), girih::Error>(())
/// ```
pub struct Request {
    prompt: Prompt,
    adapter: Option<String>,
    images: Vec<ImagePatches>,
    wanted: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    logits: bool,
    sampling: Option<Sampling>,
    max_tokens: Option<u32>,
    fills_context: bool,
    cuts_to_context: bool,
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    stop_rules: StopRules,
    prompt_end: Option<u32>,
    thinking_budget: Option<u32>,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    overflow: Overflow,
    wants_text: bool,
    format: Option<ReplyFormat>,
    constraint: Option<Box<dyn Constraint>>,
    #[cfg(feature = "grammar")]
    grammar: Option<girih_grammar::Grammar>,
    #[cfg(feature = "grammar")]
    tool_choice: crate::tool_choice::ToolChoice,
    drafter: Option<Box<dyn Drafter>>,
    draft_max: Option<u32>,
    tenant: Tenant,
    priority: Priority,
    time_limits: TimeLimits,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { prompt, sampling, max_tokens, stops, logprobs, overflow, .. } = self;
        f.debug_struct("Request")
            .field("prompt", prompt)
            .field("sampling", sampling)
            .field("max_tokens", max_tokens)
            .field("stops", stops)
            .field("logprobs", logprobs)
            .field("overflow", overflow)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// A request for at most 256 tokens with the model's own sampling settings.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time");
    /// ```
    pub fn new(prompt: impl Into<Prompt>) -> Request {
        Request {
            prompt: prompt.into(),
            adapter: None,
            images: Vec::new(),
            wanted: None,
            logits: false,
            sampling: None,
            max_tokens: None,
            fills_context: false,
            cuts_to_context: false,
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            stop_rules: StopRules::default(),
            prompt_end: None,
            thinking_budget: None,
            logprobs: None,
            prompt_logprobs: None,
            overflow: Overflow::Error,
            wants_text: true,
            format: None,
            constraint: None,
            #[cfg(feature = "grammar")]
            grammar: None,
            #[cfg(feature = "grammar")]
            tool_choice: crate::tool_choice::ToolChoice::Auto,
            drafter: None,
            draft_max: None,
            tenant: Tenant::default(),
            priority: Priority::default(),
            time_limits: TimeLimits::default(),
        }
    }

    /// Chooses one of the adapters with which the model was opened
    /// ([`OpenOptions::adapters`](crate::OpenOptions::adapters)). By default the model runs without one.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").adapter("poet");
    /// ```
    #[must_use]
    pub fn adapter(self, name: impl Into<String>) -> Request {
        Request { adapter: Some(name.into()), ..self }
    }

    /// Adds images, in the order in which the prompt has places for them: a conversation by the parts of type `image` of
    /// its messages, tokens by the model's image tokens. Needs [`RunOptions::images`](crate::RunOptions::images).
    ///
    /// ```no_run
    /// use girih::{Conversation, ImagePatches, Model, Request, RunOptions};
    ///
    /// let model = Model::open("models/gemma-3-4b-it")?;
    /// let format = model.image_format()?;
    /// let grey = ImagePatches::new(vec![0.0; format.max_patches * format.patch_values]);
    /// let session = model.plan(RunOptions { images: true, ..RunOptions::default() })?.start(|_| {})?;
    /// let parts = serde_json::json!([{ "type": "image" }, { "type": "text", "text": "What is this?" }]);
    /// let mut chat = Conversation::new();
    /// chat.messages.push(serde_json::json!({ "role": "user", "content": parts }));
    /// println!("{}", session.generate(Request::new(chat).images([grey]))?.text()?);
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn images(mut self, images: impl IntoIterator<Item = ImagePatches>) -> Request {
        self.images.extend(images);
        self
    }

    /// Sets a question that is asked before the work on each image. Where its answer is no, the request ends with an error of
    /// the kind [`ErrorKind::Cancelled`]: images take long, and the client may have left meanwhile.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// let client = Arc::new(());
    /// let there = Arc::downgrade(&client);
    /// let request = girih::Request::new("Once").while_wanted(move || there.strong_count() > 0);
    /// # drop(request);
    /// ```
    #[must_use]
    pub fn while_wanted(mut self, wanted: impl Fn() -> bool + Send + Sync + 'static) -> Request {
        self.wanted = Some(Box::new(wanted));
        self
    }

    /// Sets how tokens are chosen. By default as the model's `generation_config.json` says, else
    /// greedily. The seed is 0 unless it is set, so a repeated request has the same reply.
    ///
    /// ```
    /// use girih::{Request, Sampling};
    ///
    /// let sampling = Sampling { temperature: 0.7, seed: 1, ..Sampling::default() };
    /// let request = Request::new("Once upon a time").sampling(sampling);
    /// ```
    #[must_use]
    pub fn sampling(self, sampling: Sampling) -> Request {
        Request { sampling: Some(sampling), ..self }
    }

    /// Sets the maximum number of tokens of the reply, at least 1, or at least 0 with
    /// [`Request::prompt_logprobs`]. Default: 256, or fewer if the context has less room.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").max_tokens(1000);
    /// ```
    #[must_use]
    pub fn max_tokens(self, max: u32) -> Request {
        Request { max_tokens: Some(max), ..self }
    }

    /// Lets the reply be as long as the context allows.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").fill_context();
    /// ```
    #[must_use]
    pub fn fill_context(self) -> Request {
        Request { fills_context: true, ..self }
    }

    /// Lowers [`Request::max_tokens`] to what the context leaves after the prompt, instead of
    /// refusing the request.
    ///
    /// ```
    /// use girih::Request;
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let request = Request::new("Once upon a time").max_tokens(100_000).cut_to_context();
    /// assert!(session.generate(request)?.text()?.contains("Lily"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn cut_to_context(self) -> Request {
        Request { cuts_to_context: true, ..self }
    }

    /// Adds a token that ends the reply beside the model's own ones; it is not part of the reply. The model's
    /// own ones and these are at most 64.
    ///
    /// ```
    /// let request = girih::Request::new("1, 2, 3").stop_token(13);
    /// ```
    #[must_use]
    pub fn stop_token(mut self, id: u32) -> Request {
        self.stop_tokens.push(id);
        self
    }

    /// Sets the number of tokens before which neither the model nor a stop ends the reply. Default 0.
    ///
    /// ```
    /// let request = girih::Request::new("1, 2, 3").min_tokens(8);
    /// ```
    #[must_use]
    pub fn min_tokens(self, min: u32) -> Request {
        Request { stop_rules: StopRules { min_new: min, ..self.stop_rules }, ..self }
    }

    /// Lets the reply end after its stop string and not before it.
    ///
    /// ```
    /// let request = girih::Request::new("1, 2, 3").stop("10").include_stop();
    /// ```
    #[must_use]
    pub fn include_stop(self) -> Request {
        Request { stop_rules: StopRules { includes_string: true, ..self.stop_rules }, ..self }
    }

    /// Keeps only the last `tokens` tokens of the prompt.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").prompt_end(2);
    /// ```
    #[must_use]
    pub fn prompt_end(self, tokens: u32) -> Request {
        Request { prompt_end: Some(tokens), ..self }
    }

    /// Ends the model's thinking after `max` tokens, in the form in which the model itself ends it, so that the answer
    /// begins. The prompt is a conversation, or has a [`Request::format`]. It has no effect on a model that does not think,
    /// and on a reply with a grammar, which has no thinking. Cannot be combined with [`Request::constraint`].
    ///
    /// ```
    /// use girih::{Conversation, Request};
    ///
    /// let request = Request::new(Conversation::new().user("Is 91 prime?")).thinking_budget(200);
    /// ```
    #[must_use]
    pub fn thinking_budget(self, max: u32) -> Request {
        Request { thinking_budget: Some(max), ..self }
    }

    /// Ends a reply that repeats itself with [`Stop::Repetition`](crate::Stop::Repetition).
    ///
    /// ```
    /// use girih::{RepetitionRule, Request};
    ///
    /// let request = Request::new("Once upon a time").stop_repetition(RepetitionRule { tokens: 64, times: 8 });
    /// ```
    #[must_use]
    pub fn stop_repetition(self, rule: RepetitionRule) -> Request {
        Request { stop_rules: StopRules { repetition: Some(rule), ..self.stop_rules }, ..self }
    }

    /// Adds a text before which the reply ends: at most 16, of at most 256 bytes each. In a reply with a grammar
    /// or a forced call, it counts only where the reply before it is complete.
    ///
    /// ```
    /// let request = girih::Request::new("1, 2, 3").stop("10").stop("\n");
    /// ```
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.stops.push(text.into());
        self
    }

    /// Asks for the log-probability of each token of the reply and those of the `top` most likely
    /// tokens, at most 20: natural logarithms, of the model's own distribution.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").logprobs(5);
    /// ```
    #[must_use]
    pub fn logprobs(self, top: u32) -> Request {
        Request { logprobs: Some(top), ..self }
    }

    /// Asks for the log-probability of each token of the prompt after the tokens before it, and
    /// those of the `top` most likely tokens, at most 20: one
    /// [`Event::PromptToken`](crate::Event::PromptToken) each, before all other events. The whole
    /// prompt is computed, whatever the prefix cache holds, at most
    /// [`RunOptions::output_rows`](crate::RunOptions::output_rows) tokens in a step. Cannot be
    /// combined with [`Overflow::Truncate`].
    ///
    /// ```
    /// use girih::{Event, Model, Request, RunOptions};
    ///
    /// let options = RunOptions { output_rows: 32, ..RunOptions::default() };
    /// let session = Model::open("stories260k")?.plan(options)?.start(|_| {})?;
    /// let request = Request::new("Once upon a time").prompt_logprobs(0).max_tokens(0);
    /// let mut total = 0.0;
    /// for event in session.generate(request)? {
    ///     if let Event::PromptToken { logprobs: Some(logprobs), .. } = event? {
    ///         total += logprobs.chosen.value;
    ///     }
    /// }
    /// assert!(total < 0.0);
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn prompt_logprobs(self, top: u32) -> Request {
        Request { prompt_logprobs: Some(top), ..self }
    }

    /// Sets what happens if prompt and reply exceed the context. By default the request is
    /// refused.
    ///
    /// ```
    /// use girih::{Overflow, Request};
    ///
    /// let request = Request::new("Once upon a time").overflow(Overflow::Truncate);
    /// ```
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Request {
        Request { overflow, ..self }
    }

    /// Omits the text: events carry token ids only, and no tokenizer is needed if the prompt is
    /// token ids. Stop strings are refused.
    ///
    /// ```
    /// let request = girih::Request::new(vec![1, 403]).without_text();
    /// ```
    #[must_use]
    pub fn without_text(self) -> Request {
        Request { wants_text: false, ..self }
    }

    /// Sets how the reply is split into content, thinking and calls of tools, for a prompt in tokens
    /// that a chat template wrote; see [`ReplyFormat`]. A prompt that is a conversation sets it
    /// itself.
    ///
    /// ```
    /// # let model = girih::Model::open("stories260k")?;
    /// let format = model.reply_format(&girih::Conversation::new(), &[])?;
    /// let request = girih::Request::new(vec![1, 403]).format(format);
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn format(self, format: ReplyFormat) -> Request {
        Request { format: Some(format), ..self }
    }

    /// Sets a constraint on the reply's tokens, such as a grammar. A mask that rules out every
    /// token ends the request with [`ErrorKind::Refused`](crate::ErrorKind::Refused).
    ///
    /// ```
    /// use girih::{Constraint, Model, Request, Result};
    ///
    /// /// Allows tokens of even id only.
    /// struct Even;
    ///
    /// impl Constraint for Even {
    ///     fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
    ///         allowed.iter_mut().skip(1).step_by(2).for_each(|allowed| *allowed = false);
    ///         Ok(())
    ///     }
    ///     fn accept(&mut self, _: u32) -> Result<()> {
    ///         Ok(())
    ///     }
    ///     fn is_complete(&self) -> bool {
    ///         false
    ///     }
    /// }
    ///
    /// let session = Model::open("stories260k")?.start()?;
    /// let reply = session.generate(Request::new("Once").max_tokens(8).constraint(Box::new(Even)))?;
    /// assert!(reply.tokens()?.iter().all(|id| id % 2 == 0));
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn constraint(self, constraint: Box<dyn Constraint>) -> Request {
        Request { constraint: Some(constraint), ..self }
    }

    /// Sets what the reply must be: JSON of a schema, any JSON object, a text of a regular
    /// expression or of a grammar. A reply that ends with [`Stop::Token`](crate::Stop::Token) or
    /// [`Stop::Complete`](crate::Stop::Complete) is all of that and was validated; one that was
    /// cut ends with [`Stop::Length`](crate::Stop::Length) or
    /// [`Stop::Context`](crate::Stop::Context). Cannot be combined with
    /// [`Request::constraint`] or stop strings.
    ///
    /// ```
    /// use girih::{Grammar, Model, Request};
    ///
    /// let session = Model::open("stories260k")?.start()?;
    /// let schema = r#"{"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"]}"#;
    /// let request = Request::new("Once upon a time").grammar(Grammar::JsonSchema(schema.to_owned()));
    /// let reply = session.generate(request)?.text()?;
    /// assert!(reply.starts_with('{') && reply.contains("\"age\""));
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn grammar(self, grammar: girih_grammar::Grammar) -> Request {
        Request { grammar: Some(grammar), ..self }
    }

    /// Sets whether the reply must be a call of a tool of the conversation. Such a call is of the
    /// tools that are allowed, its arguments satisfy the tool's schema, and it was validated if the
    /// reply was not cut. Cannot be combined with a grammar, a constraint or stop strings.
    ///
    /// ```
    /// use girih::{BUILT_IN, Conversation, Model, OpenOptions, Request, ToolChoice};
    ///
    /// let template = "<s>{{ tools }}{# <tool_call> #}{{ messages[0].content }}";
    /// let options = OpenOptions { chat_template: Some(template.into()), ..OpenOptions::default() };
    /// let session = Model::open_with(BUILT_IN, &options)?.start()?;
    /// let tool = r#"{"type": "function", "function": {"name": "look", "parameters":
    ///     {"properties": {"up": {"type": "boolean"}}, "required": ["up"], "additionalProperties": false}}}"#;
    /// let tools = Some(vec![serde_json::from_str(tool).expect("JSON")]);
    /// let conversation = Conversation { tools, ..Conversation::new().user("Is it day?") };
    /// let request = Request::new(conversation).tool_choice(ToolChoice::Required);
    /// let message = session.generate(request)?.message()?;
    /// assert_eq!(message.calls[0].name, "look");
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn tool_choice(self, tool_choice: crate::tool_choice::ToolChoice) -> Request {
        Request { tool_choice, ..self }
    }

    /// Sets a drafter, which guesses tokens that the model then checks several at a time. It
    /// changes the speed of a reply, not its tokens (except on the `npu` backend), and needs
    /// [`RunOptions::output_rows`](crate::RunOptions::output_rows) above
    /// [`RunOptions::sequences`](crate::RunOptions::sequences).
    ///
    /// ```
    /// use girih::{DraftQuery, Drafter, Model, RunOptions, Request};
    ///
    /// /// Guesses that the last token is repeated.
    /// struct Again;
    ///
    /// impl Drafter for Again {
    ///     fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32> {
    ///         vec![*query.tokens.last().unwrap_or(&0); query.max.min(2) as usize]
    ///     }
    /// }
    ///
    /// let options = RunOptions { output_rows: 3, ..RunOptions::default() };
    /// let session = Model::open("stories260k")?.plan(options)?.start(|_| {})?;
    /// let plain = session.generate(Request::new("Once").max_tokens(20))?.text()?;
    /// let drafted = session.generate(Request::new("Once").max_tokens(20).drafter(Box::new(Again)))?.text()?;
    /// assert_eq!(plain, drafted);
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn drafter(self, drafter: Box<dyn Drafter>) -> Request {
        Request { drafter: Some(drafter), ..self }
    }

    /// Lowers the maximum number of tokens that the session's
    /// [`RunOptions::drafts`](crate::RunOptions::drafts) draft at once; 0 is no drafts.
    ///
    /// ```
    /// let request = girih::Request::new("Once upon a time").draft_max(0);
    /// ```
    #[must_use]
    pub fn draft_max(self, max: u32) -> Request {
        Request { draft_max: Some(max), ..self }
    }

    /// Sets the tenant, such as the holder of an API key: tenants share the model's time by tokens,
    /// and no cached prefix. By default all requests belong to one tenant.
    ///
    /// ```
    /// use girih::{Request, Tenant};
    ///
    /// let request = Request::new("Once upon a time").tenant(Tenant::new("alice"));
    /// ```
    #[must_use]
    pub fn tenant(self, tenant: Tenant) -> Request {
        Request { tenant, ..self }
    }

    /// Sets which waiting requests it precedes.
    ///
    /// ```
    /// use girih::{Priority, Request};
    ///
    /// let request = Request::new("Once upon a time").priority(Priority::Low);
    /// ```
    #[must_use]
    pub fn priority(self, priority: Priority) -> Request {
        Request { priority, ..self }
    }

    /// Sets how long the request may take. One that takes longer ends with
    /// [`Stop::Deadline`](crate::Stop::Deadline) after the current step.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use girih::{Request, TimeLimits};
    ///
    /// let limits = TimeLimits { first_token: Some(Duration::from_secs(10)), ..TimeLimits::default() };
    /// let request = Request::new("Once upon a time").time_limits(limits);
    /// ```
    #[must_use]
    pub fn time_limits(self, time_limits: TimeLimits) -> Request {
        Request { time_limits, ..self }
    }

    /// The maximum time for which it may wait until it is admitted, if it has one of its own.
    pub(crate) fn queue_limit(&self) -> Option<Duration> {
        self.time_limits.queue
    }

    /// Checks that it can have this number of replies.
    ///
    /// # Errors
    /// When the number is outside its range, or the request has an object that serves one reply or none.
    pub(crate) fn check_count(&self, count: u32) -> Result<()> {
        let sentence = if count == 0 || count > MAX_REPLIES {
            format!("{count} replies were asked for; the range is 1 to {MAX_REPLIES}")
        } else if self.constraint.is_some() && self.thinking_budget.is_some() {
            "the request has a constraint and a thinking budget: remove one of them".to_owned()
        } else if count > 1 && (self.constraint.is_some() || self.drafter.is_some()) {
            "the request has a constraint or a drafter, which serves one reply: ask for one, or use a grammar"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    /// The tenant that it belongs to.
    pub(crate) fn owner(&self) -> &Tenant {
        &self.tenant
    }

    /// The constraints of this number of replies: the caller's, or that of the grammar or of the
    /// forced call; empty without one.
    #[cfg(feature = "grammar")]
    fn take_constraints(
        &mut self,
        model: &Model,
        format: Option<&ReplyFormat>,
        count: u32,
    ) -> Result<Vec<Box<dyn Constraint>>> {
        if let Some(call) = self.tool_choice.grammar(format)?
            && self.grammar.replace(call).is_some()
        {
            let sentence = "the request has a grammar and a tool choice: remove one of them";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let Some(grammar) = &self.grammar else { return Ok(self.constraint.take().into_iter().collect()) };
        let other = match (&self.constraint, &self.stop_tokens[..], self.stop_rules.min_new) {
            (Some(_), _, _) => "a constraint",
            (None, [_, ..], _) => "stop tokens, which would end it early",
            (None, _, 1..) => "a minimum number of tokens",
            (None, [], 0) => {
                let compiled = model.grammar_compiler()?.compile_several(grammar, count)?;
                self.stop_rules.only_where_complete = true;
                return Ok(compiled.into_iter().map(|one| Box::new(one) as Box<dyn Constraint>).collect());
            }
        };
        let form = if matches!(grammar, girih_grammar::Grammar::Call(_)) { "tool choice" } else { "grammar" };
        let sentence = format!("the request has a {form} and {other}: remove one of them");
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    #[cfg(feature = "grammar")]
    fn forces_call(&self) -> bool {
        self.tool_choice != crate::tool_choice::ToolChoice::Auto
    }

    #[cfg(not(feature = "grammar"))]
    fn forces_call(&self) -> bool {
        false
    }

    /// The caller's constraint.
    #[cfg(not(feature = "grammar"))]
    fn take_constraints(
        &mut self,
        _: &Model,
        _: Option<&ReplyFormat>,
        _: u32,
    ) -> Result<Vec<Box<dyn Constraint>>> {
        Ok(self.constraint.take().into_iter().collect())
    }

    /// The tokens of the prompt, and the format of its reply and the places of its parts if a template wrote it.
    fn take_prompt(&mut self, model: &Model) -> Result<(Vec<u32>, Option<ReplyFormat>, PromptPlaces)> {
        let format = self.format.take();
        match std::mem::replace(&mut self.prompt, Prompt::Tokens(Vec::new())) {
            Prompt::Text(text) => Ok((model.tokenize(&text)?, format, None)),
            Prompt::Conversation(conversation) => {
                let mut spans = model.render(&conversation)?;
                if !self.images.is_empty() {
                    spans = expanded(spans, &model.tower_files()?.tower, &self.images)?;
                }
                let format = match format {
                    None if self.wants_text || self.forces_call() => {
                        Some(model.reply_format(&conversation, &spans)?)
                    }
                    format => format,
                };
                let tokenizer = &model.text_processor()?.tokenizer;
                let tokens = tokenizer.encode_spans(&spans, BosEos::Omit)?;
                let is_whole = self.prompt_end.is_none();
                let map = is_whole.then(|| PromptMap::new(&conversation, &spans, &tokens, tokenizer));
                Ok((tokens, format, map.map(Arc::new)))
            }
            Prompt::Tokens(tokens) => Ok((tokens, format, None)),
        }
    }

    /// This request with the tokens of its prompt in its place, and these tokens, for programs that report them. The reply
    /// is the same, but has no [`Reply::prompt_map`](crate::Reply::prompt_map).
    ///
    /// ```
    /// # let model = girih::Model::open("stories260k")?;
    /// let (request, tokens) = girih::Request::new("Once upon a time").tokenized(&model)?;
    /// assert_eq!(tokens, model.tokenize("Once upon a time")?);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model has no tokenizer or no chat template, the template refuses the conversation, or the text is too
    /// long.
    pub fn tokenized(mut self, model: &Model) -> Result<(Request, Vec<u32>)> {
        let (tokens, format, _) = self.take_prompt(model)?;
        Ok((Request { prompt: Prompt::Tokens(tokens.clone()), format, ..self }, tokens))
    }

    /// A request for the logits that follow a prompt.
    pub(crate) fn for_logits(tokens: &[u32]) -> Request {
        Request { logits: true, max_tokens: Some(1), ..Request::new(tokens.to_vec()).without_text() }
    }

    /// The maximum number of tokens of a reply to a prompt of `tokens` tokens; `None` for what the context leaves.
    fn max_new(&self, tokens: usize, context: u32) -> Option<u32> {
        // The default is cut to what the context leaves; only the caller's number can be refused.
        let room = (context as usize).saturating_sub(tokens).max(1);
        let default = match self.overflow {
            Overflow::Error => room.min(DEFAULT_MAX_TOKENS as usize) as u32,
            Overflow::Truncate => DEFAULT_MAX_TOKENS,
        };
        let max_new = self.max_tokens.unwrap_or(default);
        let max_new = if self.cuts_to_context { max_new.min(room as u32) } else { max_new };
        (!self.fills_context).then_some(max_new)
    }
}
