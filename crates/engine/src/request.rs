//! Requests, their limits, and the engine's events: plain data.

use std::sync::Arc;
use std::time::Duration;

use girih_graph::backend::Range32;

use crate::cache::NearestPrompt;
use crate::latency::TokenLatencies;
use crate::repetition::RepetitionRule;
use crate::row_work::RowWork;
use crate::sample::Logprobs;
use crate::service::{Priority, Tenant, TimeLimits};
use crate::{Error, ErrorKind, Overflow, Result, Sampling};

/// A prompt to be continued.
#[derive(Clone, Debug, Default)]
pub struct TokenRequest {
    /// The token ids of the prompt, special tokens included.
    pub tokens: Vec<u32>,
    /// The number of tokens at the end of the prompt that belong to the reply; penalties
    /// count them as reply.
    pub replied: u32,
    /// Rows that replace the embeddings of tokens of the prompt, such as those of an image: in
    /// order of position, without overlap. Their tokens affect only penalties.
    pub given: Vec<EmbeddedRows>,
    /// How many rows of `given` were made for this request before it was submitted, and the time that took. The times of
    /// [`Stats`] include it.
    pub images: TokenRate,
    /// Mutual spans of the prompt: ranges of positions that attend to each other both ways, in
    /// order, without overlap. Each is run in one step.
    pub spans: Vec<Range32>,
    /// The index of the adapter that every row uses, among those beside the loaded model; `None` for that of
    /// [`Engine::set_adapter`](crate::Engine::set_adapter), or for the model alone.
    pub adapter: Option<u32>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// The maximum number of tokens to generate; `None` for as many as the context holds. 0 is valid
    /// only with `prompt_logprobs`.
    pub max_new: Option<u32>,
    /// Conditions that end the reply early.
    pub stops: Stops,
    /// When these conditions hold.
    pub stop_rules: StopRules,
    /// If set, events report each token's log-probability and those of this number of most
    /// likely tokens.
    pub logprobs: Option<u32>,
    /// If set, an [`EventKind::PromptToken`] reports each token of the prompt, with its
    /// log-probability after the tokens before it and those of this number of most likely tokens.
    /// All rows of the prompt are then output rows: none comes from the prefix cache, and a step
    /// runs at most as many as the programs have output rows.
    pub prompt_logprobs: Option<u32>,
    /// What happens if the prompt, or the prompt with its reply, exceeds the context.
    pub overflow: Overflow,
    /// The maximum number of tokens of a draft, 0 for no drafts; `None`, or more than the engine's
    /// ([`Engine::set_drafts`](crate::Engine::set_drafts)), for that one. It does not affect a
    /// drafter of the request's own.
    pub draft_max: Option<u32>,
    /// Whether the request asks for the logits that follow its prompt instead of a reply:
    /// one [`EventKind::Logits`], then the end with [`Stop::Length`]. No token is chosen,
    /// so `max_new`, `sampling`, `stops` and `logprobs` have no effect.
    pub logits: bool,
    /// Whom the request belongs to.
    pub tenant: Tenant,
    /// Which waiting requests it precedes.
    pub priority: Priority,
    /// How long it may take.
    pub time_limits: TimeLimits,
}

/// Tokens to be run, with the given rows and the mutual spans among them, as those of a [`TokenRequest`].
#[derive(Clone, Copy, Debug)]
pub struct TokenPrompt<'a> {
    /// The token ids.
    pub tokens: &'a [u32],
    /// Rows that replace the embeddings of tokens.
    pub given: &'a [EmbeddedRows],
    /// Ranges of positions that attend to each other both ways.
    pub spans: &'a [Range32],
}

impl<'a> TokenPrompt<'a> {
    /// Tokens only.
    pub fn plain(tokens: &'a [u32]) -> TokenPrompt<'a> {
        TokenPrompt { tokens, given: &[], spans: &[] }
    }
}

/// Consecutive rows of the model's width that replace the embeddings of tokens.
#[derive(Clone, Debug, Default)]
pub struct EmbeddedRows {
    /// The position of the first one in the prompt.
    pub first: u32,
    /// The number of rows.
    pub rows: u32,
    /// The values, row after row, as the first layer reads them.
    pub values: Arc<[f32]>,
    /// What identifies the values, such as their SHA-256: requests with the same content at the
    /// same positions share state. It also identifies `columns`, `time` and `added`.
    pub content: [u8; 32],
    /// The rows side by side in an image, for models whose positions have several axes. All rows of an image then have one
    /// position in time, and their places in the image along the other axes; positions behind it go on from the largest of
    /// these. Without it, and along the only axis of other models, rows are one after the other.
    pub columns: Option<u32>,
    /// For a later group of frames of a video, all of whose groups start at the place of the first one: how far it lies behind
    /// that group along the axis of time. The rows before are those of the group before, with as many columns, and positions
    /// behind the video go on from the largest along any axis. `content` identifies it, too.
    pub time: Option<u32>,
    /// The token that the model reads in these positions in place of the prompt's, if it reads one beside the rows: the
    /// embeddings of layers of Gemma 4 are those of this token. Without it, they are those of the prompt's tokens.
    pub token: Option<u32>,
    /// Rows that are added to the outputs of the first layers, in models that take some: for each layer as many values as
    /// `values` has.
    pub added: Vec<Arc<[f32]>>,
}

impl EmbeddedRows {
    /// The largest [`EmbeddedRows::time`]: three days of a video with four positions in a second.
    pub const MAX_TIME: u32 = 1 << 20;
}

/// Conditions that end a reply early.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Token ids, such as end-of-turn. They are not part of the reply.
    pub tokens: Vec<u32>,
    /// Strings in the reply's text. Neither they nor the text after them is emitted.
    pub strings: Vec<String>,
}

/// When the conditions that end a reply hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// The number of tokens before which nothing ends the reply: stop tokens are ruled out, and stop
    /// strings that end in their text do not count. Default 0.
    pub min_new: u32,
    /// Whether a stop string counts only where it begins after a token that a stop token could follow, so that
    /// the text before it is what the request's constraint calls complete.
    pub only_where_complete: bool,
    /// Whether the text ends after the stop string, and not before it.
    pub includes_string: bool,
    /// If set, a reply that repeats itself so ends with [`Stop::Repetition`].
    pub repetition: Option<RepetitionRule>,
}

/// Bounds on requests.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Positions of a sequence: prompt and reply together.
    pub context: u32,
    /// The maximum number of rows of one step, all sequences together.
    pub chunk: u32,
    /// The maximum number of concurrent sequences; each has a row in every step.
    pub sequences: u32,
    /// The maximum number of requests that wait, at least 1; a full queue refuses another
    /// one. Active and suspended requests do not count. A step admits requests, so those
    /// submitted between two steps wait, even while the engine has no active request.
    /// Default `u32::MAX`: no limit.
    pub waiting: u32,
    /// As `waiting`, for the requests of one tenant. Default `u32::MAX`: no limit of its own.
    pub tenant_waiting: u32,
    /// The maximum number of stop tokens of a request.
    pub stop_tokens: usize,
    /// The maximum number of stop strings of a request.
    pub stop_strings: usize,
    /// The maximum length of a stop string in bytes.
    pub stop_string_bytes: usize,
    /// The maximum number of biases of a request. The default leaves room for 1024 of a client and for
    /// those that rule out the stop tokens.
    pub biases: usize,
    /// The maximum number of log-probabilities per token of the prompt and of the reply.
    pub logprobs: u32,
    /// The time that a step with rows of prompts should take beside replies: prompts get as many rows as steps did in this time,
    /// by the work of their rows, at least [`LEAST_PROMPT_ROWS`](crate::LEAST_PROMPT_ROWS) and at most `chunk`. No
    /// reply depends on it. Default `None`: `chunk`.
    pub step_time: Option<Duration>,
    /// The work of a row of a prompt. Default: that of every row is equal.
    pub row_work: RowWork,
}

impl EngineLimits {
    /// Returns the limits for a context and prefill chunks of `chunk` rows, with one
    /// sequence at a time.
    pub fn new(context: u32, chunk: u32) -> EngineLimits {
        EngineLimits {
            context,
            chunk,
            sequences: 1,
            waiting: u32::MAX,
            tenant_waiting: u32::MAX,
            stop_tokens: 64,
            stop_strings: 16,
            stop_string_bytes: 256,
            biases: 1024 + 64,
            logprobs: 20,
            step_time: None,
            row_work: RowWork::default(),
        }
    }
}

impl TokenRequest {
    /// Checks the request; `vocabulary` is the number of the model's logits.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::TooLong`] when the prompt and the requested tokens exceed
    /// the context, and [`ErrorKind::Refused`] when a number is outside its range or
    /// exceeds `limits`.
    pub fn check(&self, limits: &EngineLimits, vocabulary: usize) -> Result<()> {
        let TokenRequest { tokens, sampling, stops, .. } = self;
        self.check_length(limits.context)?;
        self.check_content(limits)?;
        if let Some(rule) = self.stop_rules.repetition {
            rule.check()?;
        }
        if self.stop_rules.min_new > 0 && self.overflow == Overflow::Truncate {
            return Err(refused(
                "a minimum number of tokens cannot be counted across truncations; choose the overflow 'error'",
            ));
        }
        at_most("stop tokens", stops.tokens.len(), limits.stop_tokens)?;
        at_most("stop strings", stops.strings.len(), limits.stop_strings)?;
        at_most("biased tokens", sampling.bias.len(), limits.biases)?;
        let logprobs = self.logprobs.max(self.prompt_logprobs).unwrap_or(0);
        at_most("log-probabilities per token", logprobs as usize, limits.logprobs as usize)?;
        for stop in &stops.strings {
            at_most("bytes in a stop string", stop.len(), limits.stop_string_bytes)?;
            if stop.is_empty() {
                return Err(refused("a stop string is empty; leave it out or give it text"));
            }
        }
        at_most("bytes in its tenant's name", self.tenant.name().len(), Tenant::MAX_NAME_BYTES)?;
        known("prompt", tokens.iter(), vocabulary)?;
        known("list of stop tokens", stops.tokens.iter(), vocabulary)?;
        known("logit bias", sampling.bias.iter().map(|(id, _)| id), vocabulary)?;
        sampling.check()
    }

    /// Checks that the prompt and the requested tokens fit after what
    /// [`TokenRequest::overflow`] drops.
    fn check_length(&self, context: u32) -> Result<()> {
        let prompt = self.tokens.len();
        if prompt == 0 {
            return Err(refused("the prompt has no tokens; the model needs at least one to continue"));
        }
        if self.max_new == Some(0) && !self.logits && self.prompt_logprobs.is_none() {
            return Err(refused("0 new tokens were requested; request at least 1, or set no limit"));
        }
        if self.prompt_logprobs.is_some() && self.overflow == Overflow::Truncate {
            return Err(refused(
                "log-probabilities of a prompt need all of it, so it cannot be truncated; choose the overflow 'error'",
            ));
        }
        let replied = self.replied;
        if replied as usize > prompt {
            return Err(refused(format!(
                "{replied} tokens of the prompt are marked as reply, but it has {prompt}; mark at most {prompt}"
            )));
        }
        let new = match (self.overflow, self.max_new) {
            (Overflow::Error, Some(new)) if !self.logits => new as usize,
            _ => self.least_new(),
        };
        let total = self.kept(prompt, context).saturating_add(new);
        if total <= context as usize {
            return Ok(());
        }
        let sentence = format!(
            "the prompt has {prompt} {tokens} and {asked} requested; the context is {context}: \
             shorten the prompt or request fewer tokens, by {} in all",
            total - context as usize,
            tokens = if prompt == 1 { "token" } else { "tokens" },
            asked = match self.max_new {
                _ if self.logits => "its logits were".to_owned(),
                Some(0) => "its log-probabilities were".to_owned(),
                Some(1) => "1 more was".to_owned(),
                Some(new) => format!("{new} more were"),
                None => "at least 1 more is".to_owned(),
            },
        );
        Err(Error::with_kind(ErrorKind::TooLong, sentence))
    }

    /// Checks given rows and mutual spans against the prompt, and that each span fits into a
    /// step beside the other sequences.
    pub(crate) fn check_content(&self, limits: &EngineLimits) -> Result<()> {
        if self.given.is_empty() && self.spans.is_empty() {
            return Ok(());
        }
        if self.prompt_logprobs.is_some() {
            return Err(refused(
                "a prompt with given rows or mutual spans has no log-probabilities of its own; ask for those of \
                 the reply only",
            ));
        }
        if self.overflow == Overflow::Truncate {
            return Err(refused(
                "a prompt with given rows or mutual spans cannot be truncated; choose the overflow 'error'",
            ));
        }
        let given = self.given.iter().map(|rows| (rows.first, u64::from(rows.first) + u64::from(rows.rows)));
        in_order("given rows", given, self.tokens.len())?;
        let spans = self.spans.iter().map(|span| (span.start, u64::from(span.end)));
        in_order("mutual span", spans, self.tokens.len())?;
        if let Some(rows) = self.given.iter().find(|rows| rows.values.len() % rows.rows as usize != 0) {
            let (rows, have) = (rows.rows, rows.values.len());
            return Err(refused(format!("{have} values were given for {rows} rows; give whole rows")));
        }
        let max = limits.chunk.saturating_sub(limits.sequences.saturating_sub(1));
        match self.spans.iter().map(|span| span.end - span.start).max() {
            Some(length) if length > max => Err(refused(format!(
                "a mutual span has {length} positions, which must be run in one step; the limit is {max}: \
                 raise the chunk"
            ))),
            _ => Ok(()),
        }
    }

    /// The smallest number of tokens that must fit after those of the prompt.
    fn least_new(&self) -> usize {
        usize::from(!self.logits && self.max_new != Some(0))
    }

    /// The number of tokens that stay of `have` tokens in this context.
    pub(crate) fn kept(&self, have: usize, context: u32) -> usize {
        self.overflow.kept(have, self.least_new(), context)
    }

    /// The maximum number of tokens to generate after `have` tokens in this context.
    pub(crate) fn room(&self, have: usize, context: u32) -> usize {
        let rest = (context as usize).saturating_sub(have);
        self.max_new.map_or(rest, |new| rest.min(new as usize))
    }
}

/// Returns an error of the kind [`ErrorKind::Refused`].
fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// Returns an error if a range is empty, overlaps the one before, or exceeds the prompt.
fn in_order(what: &str, ranges: impl Iterator<Item = (u32, u64)>, prompt: usize) -> Result<()> {
    let mut next = 0;
    for (start, end) in ranges {
        if u64::from(start) < next || end <= u64::from(start) || end > prompt as u64 {
            return Err(refused(format!(
                "the {what} at {start}..{end} is empty, overlaps the one before, or exceeds the prompt of \
                 {prompt} tokens"
            )));
        }
        next = end;
    }
    Ok(())
}

/// Returns an error if an id is outside the vocabulary.
fn known<'a>(list: &str, mut ids: impl Iterator<Item = &'a u32>, vocabulary: usize) -> Result<()> {
    match ids.find(|id| **id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => {
            Err(refused(format!("token {id} in the {list} is outside the vocabulary of {vocabulary}")))
        }
    }
}

/// Returns an error if a count exceeds its maximum.
fn at_most(what: &str, have: usize, max: usize) -> Result<()> {
    if have <= max {
        return Ok(());
    }
    Err(refused(format!("the request has {have} {what}; at most {max} are allowed")))
}

/// The id of a request within its engine; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// An event of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestEvent {
    /// The request.
    pub request: RequestId,
    /// The kind of event, with its data.
    pub kind: EventKind,
}

/// What can happen to a request. [`EventKind::Finished`] or [`EventKind::Failed`] is its
/// last event, and each request has exactly one of them.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// A token of the prompt; sent in order, before all other events, if the request asked for
    /// log-probabilities of its prompt.
    PromptToken {
        /// Its id.
        id: u32,
        /// Its log-probability after the tokens before it; absent for the first one.
        logprobs: Option<Logprobs>,
    },
    /// The whole prompt has been run.
    Prefilled(Stats),
    /// A token of the reply.
    Token {
        /// Its id.
        id: u32,
        /// The text that it releases: whole characters, without text that may begin a stop
        /// string.
        text: String,
        /// Present if the request asked for them.
        logprobs: Option<Logprobs>,
    },
    /// The logits that follow the prompt, one per token of the vocabulary; sent only if the
    /// request asked for them.
    Logits(Vec<f32>),
    /// The reply is complete.
    Finished {
        /// Why it ended.
        stop: Stop,
        /// The text that was held back until now.
        text: String,
        /// The statistics of the whole request.
        stats: Stats,
        /// How long each token after the first one took.
        latencies: TokenLatencies,
    },
    /// The request failed; other requests continue. The kind of the error is
    /// [`ErrorKind::NotANumber`] or [`ErrorKind::DeviceFailed`] if the model or the device
    /// failed, [`ErrorKind::OutOfRange`] if the KV cache cannot hold a key or value,
    /// [`ErrorKind::Refused`] if every token is ruled out, else that of a hook's error.
    Failed(Error),
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model chose this stop token.
    Token(u32),
    /// The text reached this stop string.
    String(String),
    /// The reply has the requested number of tokens.
    Length,
    /// The request's [`Constraint`](crate::Constraint) is complete.
    Complete,
    /// The context is full and the request set no limit.
    Context,
    /// The request was cancelled.
    Cancelled,
    /// The reply repeats itself ([`StopRules::repetition`]).
    Repetition,
    /// The request took longer than one of its [`TimeLimits`].
    Deadline,
}

/// Token counts and times of a request.
///
/// A step that runs several sequences counts in full for each of them; the time of
/// several requests together is the wall-clock time between their events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt that were in the prefix cache.
    pub cached: u32,
    /// How many of its first tokens earlier sequences of the tenant had, when it was first admitted.
    pub nearest: NearestPrompt,
    /// The other tokens of the prompt, over all chunks; includes the time to choose the
    /// first token of the reply.
    pub prefill: TokenRate,
    /// The rows of images that a tower made for the request ([`TokenRequest::images`]).
    pub images: TokenRate,
    /// Tokens after the first one, including a stop token. Without drafts, each is from a
    /// step of its own. A reply whose context overflows is prefilled again at times; then
    /// the first token after that counts as prefill.
    pub decode: TokenRate,
    /// Tokens that the request's [`Drafter`](crate::Drafter) proposed and that were run.
    pub drafted: u32,
    /// Drafted tokens that the reply kept; each saved a step.
    pub accepted: u32,
    /// The number of times it went back to the queue, because its state was lost or shared
    /// with a request that failed.
    pub requeued: u32,
    /// Tokens that were run again after their state was given up.
    pub repeated: TokenRate,
    /// The time from submission to the first token of the reply, including waiting and that of `images`; zero
    /// if there is none.
    pub first_token: Duration,
    /// The time from submission to the end, including waiting and that of `images`; zero before the end.
    pub whole: Duration,
}

/// A number of tokens and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenRate {
    /// The number of tokens.
    pub tokens: u32,
    /// Wall-clock time in the model, the samplers and the request's hooks.
    pub time: Duration,
}

impl TokenRate {
    /// Tokens per second; 0 when no time has passed.
    pub fn per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { f64::from(self.tokens) / seconds } else { 0.0 }
    }

    /// Adds tokens and their time.
    pub(crate) fn add(&mut self, tokens: u32, time: Duration) {
        self.tokens += tokens;
        self.time += time;
    }
}
