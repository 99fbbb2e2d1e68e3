//! What is asked of the engine, within which limits, and what it answers:
//! plain data.

use std::time::Duration;

use crate::sample::Logprobs;
use crate::{Error, Result, Sampling};

/// A prompt to be continued.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The token ids of the prompt, special tokens included.
    pub tokens: Vec<u32>,
    /// How many of the last of them are the reply's already: penalties count
    /// them as those that follow.
    pub replied: u32,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// The most tokens to generate; `None` for as many as the context holds.
    pub max_new: Option<u32>,
    /// What ends the reply early.
    pub stops: Stops,
    /// With each token, its log-probability and those of this many likeliest.
    pub logprobs: Option<u32>,
}

/// What ends a reply early.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Token ids, such as the end of a turn. They are not part of the reply.
    pub tokens: Vec<u32>,
    /// Strings of the reply's text. Neither they nor what follows is emitted.
    pub strings: Vec<String>,
}

/// Bounds on requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Positions of a sequence: prompt and reply together.
    pub context: u32,
    /// The most rows of one step, those of all sequences together.
    pub chunk: u32,
    /// The most sequences that are worked on together, each with a row of its
    /// own in every step.
    pub sequences: u32,
    /// The most stop tokens of a request.
    pub stop_tokens: usize,
    /// The most stop strings of a request.
    pub stop_strings: usize,
    /// The most bytes of one stop string.
    pub stop_string_bytes: usize,
    /// The most tokens with a bias.
    pub biases: usize,
    /// The most log-probabilities for each token of the reply.
    pub logprobs: u32,
}

impl Limits {
    /// The limits of a model with this context, prefilled in chunks of `chunk`,
    /// one sequence at a time.
    pub fn new(context: u32, chunk: u32) -> Limits {
        Limits {
            context,
            chunk,
            sequences: 1,
            stop_tokens: 64,
            stop_strings: 16,
            stop_string_bytes: 256,
            biases: 1024,
            logprobs: 20,
        }
    }
}

impl Request {
    /// Checks everything that does not need the model's weights; `vocabulary`
    /// is the number of its logits.
    ///
    /// # Errors
    /// When a number is outside its range, or the request exceeds `limits`.
    pub fn check(&self, limits: &Limits, vocabulary: usize) -> Result<()> {
        let Request { tokens, sampling, stops, logprobs, .. } = self;
        self.check_length(limits.context)?;
        at_most("stop tokens", stops.tokens.len(), limits.stop_tokens)?;
        at_most("stop strings", stops.strings.len(), limits.stop_strings)?;
        at_most("biased tokens", sampling.bias.len(), limits.biases)?;
        at_most("log-probabilities", logprobs.unwrap_or(0) as usize, limits.logprobs as usize)?;
        for stop in &stops.strings {
            at_most("bytes in a stop string", stop.len(), limits.stop_string_bytes)?;
            if stop.is_empty() {
                return Err(Error::new("a stop string is empty; leave it out or give it text"));
            }
        }
        known("prompt", tokens.iter(), vocabulary)?;
        known("list of stop tokens", stops.tokens.iter(), vocabulary)?;
        known("logit bias", sampling.bias.iter().map(|(id, _)| id), vocabulary)?;
        sampling.check()
    }

    /// The prompt and the tokens asked for must fit: nothing is ever cut.
    fn check_length(&self, context: u32) -> Result<()> {
        let prompt = self.tokens.len();
        if prompt == 0 {
            return Err(Error::new("the prompt has no tokens; the model needs at least one to continue"));
        }
        let new = match self.max_new {
            Some(0) => {
                return Err(Error::new("0 new tokens were asked for; ask for at least 1, or set no limit"));
            }
            Some(new) => new as usize,
            None => 1,
        };
        let replied = self.replied;
        if replied as usize > prompt {
            return Err(Error::new(format!(
                "{replied} tokens of the prompt are said to be the reply's; it has {prompt}: count no others"
            )));
        }
        let total = prompt.saturating_add(new);
        if total <= context as usize {
            return Ok(());
        }
        Err(Error::new(format!(
            "the prompt has {prompt} tokens and {asked} asked for; the context is {context}: \
             shorten the prompt, ask for fewer tokens or enlarge the context by {}",
            total - context as usize,
            asked = match self.max_new {
                Some(new) => format!("{new} more were"),
                None => "at least 1 more is".to_owned(),
            },
        )))
    }

    /// The most tokens to generate within this context.
    pub(crate) fn room(&self, context: u32) -> usize {
        let rest = (context as usize).saturating_sub(self.tokens.len());
        self.max_new.map_or(rest, |new| rest.min(new as usize))
    }
}

/// Refuses ids outside the vocabulary.
fn known<'a>(place: &str, mut ids: impl Iterator<Item = &'a u32>, vocabulary: usize) -> Result<()> {
    match ids.find(|id| **id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => {
            Err(Error::new(format!("token {id} in the {place} is outside the vocabulary of {vocabulary}")))
        }
    }
}

/// Refuses more than `most` of something.
fn at_most(what: &str, have: usize, most: usize) -> Result<()> {
    if have <= most {
        return Ok(());
    }
    Err(Error::new(format!("the request has {have} {what}; at most {most} are allowed")))
}

/// The name of a request within its engine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// To which one.
    pub request: RequestId,
    /// What happened.
    pub what: What,
}

/// What can happen to a request. [`What::Finished`] or [`What::Failed`] is its
/// last event, and each request has exactly one of them.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The whole prompt has been run.
    Prefilled(Stats),
    /// A token of the reply.
    Token {
        /// Its id.
        id: u32,
        /// The text that became certain with it: whole characters, and none
        /// that may yet turn out to begin a stop string.
        text: String,
        /// Present when the request asked for them.
        logprobs: Option<Logprobs>,
    },
    /// The reply is complete.
    Finished {
        /// Why it ended.
        stop: Stop,
        /// The text that had been held back until now.
        text: String,
        /// The amounts and times of the whole request.
        stats: Stats,
    },
    /// The device or the model failed; other requests go on.
    Failed(Error),
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model chose this stop token.
    Token(u32),
    /// The text reached this stop string.
    String(String),
    /// As many tokens as asked for.
    Length,
    /// The context is full, and the request set no limit of its own.
    Context,
    /// [`Engine::cancel`](crate::Engine::cancel).
    Cancelled,
}

/// Amounts and times of a request.
///
/// A step that runs several sequences counts in full for each of them: what
/// many requests took together is the wall-clock time between their events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt that the cache held already.
    pub cached: u32,
    /// The other tokens of the prompt, over all chunks; the time to choose the
    /// first token of the reply is in it.
    pub prefill: Rate,
    /// Tokens after the first, each from a step of its own; a stop token counts.
    pub decode: Rate,
    /// How often it had to make room for older requests.
    pub sent_back: u32,
    /// Tokens that the state had held before it was sent back, run once more.
    pub repeated: Rate,
    /// From the submission to the first token of the reply; waiting included.
    /// Zero where there is none.
    pub first_token: Duration,
    /// From the submission to the end; waiting included. Zero before the end.
    pub whole: Duration,
}

/// A number of tokens and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// How many tokens.
    pub tokens: u32,
    /// Wall-clock time in the model and the samplers.
    pub time: Duration,
}

impl Rate {
    /// Tokens per second; 0 when no time has passed.
    pub fn per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { f64::from(self.tokens) / seconds } else { 0.0 }
    }

    /// Adds another stretch of work.
    pub(crate) fn add(&mut self, tokens: u32, time: Duration) {
        self.tokens += tokens;
        self.time += time;
    }
}
