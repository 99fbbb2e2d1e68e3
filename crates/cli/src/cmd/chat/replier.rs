//! Generates one reply of a chat: limits its length, shows it, and explains its end.

use girih::tools::message_json;
use girih::{Conversation, Overflow, ReplyMessage, Session, Stop};
use serde_json::{Map, Value, json};

use super::dialogue::Dialogue;
use super::reply_interrupt::ReplyInterrupt;
use super::setting;
use crate::adapter_args::AdapterArgs;
use crate::args::{OverflowMode, SamplingArgs};
use crate::error::{Error, Result};
use crate::output::counted;
use crate::progress::Show;
use crate::reply_stream::{ReplyStream, print_event};
use crate::report::{self, FinishedReply, reply_json};
use crate::request::{TokenizedPrompt, request, sampling};

/// What to do about a full context.
const WAYS_OUT: &str =
    "/clear starts a new conversation; /truncate, or --overflow truncate, drops the oldest tokens";

/// Generates the replies of a chat.
pub struct Replier {
    /// The loaded model.
    pub session: Session,
    /// The adapter that every reply uses, if there is one.
    pub adapters: AdapterArgs,
    /// How tokens are chosen, and what a full context means.
    pub sampling: SamplingArgs,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// Whether thinking is shown.
    pub shows_thinking: bool,
    /// The maximum number of tokens of prompt and reply together.
    pub context: u32,
    /// Stops a reply.
    pub interrupt: ReplyInterrupt,
    /// Whether standard output gets events instead of text.
    pub jsonl: bool,
    /// Whether notes are shown.
    pub show: Show,
    /// The number of replies so far.
    pub turns: u32,
}

impl Replier {
    /// Generates a reply to `dialogue` and shows it. `more_seed` is added to the seed.
    ///
    /// # Errors
    /// When the template refuses the conversation, the context is full, or the model fails.
    pub fn reply(&mut self, dialogue: &Dialogue, more_seed: u64) -> Result<FinishedReply> {
        let prompt = self.prompt(dialogue)?;
        self.generate(prompt, more_seed)
    }

    /// Generates the rest of a reply to `dialogue`, which has `begun` without calls, and shows it. Returns
    /// the whole reply, with the times of its rest.
    ///
    /// # Errors
    /// As [`Replier::reply`].
    pub fn rest(&mut self, dialogue: &Dialogue, begun: &FinishedReply) -> Result<FinishedReply> {
        let prompt = self.prompt(dialogue)?.followed_by(self.session.model(), &begun.ids)?;
        let held_back = prompt.format.as_ref().map(|format| format.held_back()).unwrap_or_default();
        let FinishedReply { ids, text, message, stop, stats, latencies } = self.generate(prompt, 0)?;
        let joined = |begun: &str, rest: &str| {
            let begun = if rest.is_empty() { begun } else { begun.strip_suffix(&held_back).unwrap_or(begun) };
            format!("{begun}{rest}")
        };
        let message = ReplyMessage {
            thinking: joined(&begun.message.thinking, &message.thinking),
            content: joined(&begun.message.content, &message.content),
            ..message
        };
        let (ids, text) = ([&begun.ids[..], &ids].concat(), format!("{}{text}", begun.text));
        Ok(FinishedReply { ids, text, message, stop, stats, latencies })
    }

    /// The prompt that asks for a reply to `dialogue`.
    fn prompt(&self, dialogue: &Dialogue) -> Result<TokenizedPrompt> {
        let (messages, variables) = (dialogue.messages().to_vec(), self.variables.clone());
        let conversation = Conversation { messages, variables, ..Conversation::new() };
        TokenizedPrompt::of_conversation(self.session.model(), &conversation, dialogue.images().to_vec())
    }

    fn generate(&mut self, prompt: TokenizedPrompt, more_seed: u64) -> Result<FinishedReply> {
        self.interrupt.begin();
        let model = self.session.model();
        let tokens = prompt.tokens.clone();
        let mut settings = self.sampling.clone();
        settings.seed = settings.seed.wrapping_add(more_seed);
        if settings.overflow == OverflowMode::Error {
            let room = self.room(tokens.len())?;
            settings.max_tokens = settings.max_tokens.map(|max| max.min(room));
        }
        let request = self.adapters.of_request(request(prompt, &settings, model, self.context));
        let reply = self.session.generate(request)?;
        let fields = json!({"turn": self.turns + 1});
        let mut output = match self.jsonl {
            true => ReplyStream::events(fields.clone(), true),
            false => ReplyStream::text(),
        };
        if self.jsonl {
            print_event("start", &[&fields, &json!({"prompt_tokens": tokens.len()})])?;
        }
        self.interrupt.attach(reply.cancel_handle());
        let reply = report::read(reply, &mut output, self.shows_thinking, || self.interrupt.is_interrupted());
        self.interrupt.detach();
        let reply = reply?;
        self.turns += 1;
        if self.jsonl {
            let arithmetic = json!({"arithmetic": self.session.arithmetic()});
            let (counts, parts) = (reply_json(&tokens, &reply), message_json(&reply.message));
            print_event("end", &[&fields, &counts, &parts, &arithmetic])?;
        }
        self.explain_end(&reply, tokens.len());
        Ok(reply)
    }

    /// The number of tokens that the context leaves for a reply.
    fn room(&self, prompt: usize) -> Result<u32> {
        let room = (self.context as usize).saturating_sub(prompt);
        match u32::try_from(room) {
            Ok(room) if room > 0 => Ok(room),
            _ => Err(Error::call(format!(
                "the context of {} is full, as the conversation has {prompt}: {WAYS_OUT}",
                counted(self.context as usize, "token"),
            ))),
        }
    }

    /// Says why a reply ended, unless the model ended it.
    fn explain_end(&self, reply: &FinishedReply, prompt: usize) {
        let is_full = self.overflow() == Overflow::Error && prompt + reply.ids.len() >= self.context as usize;
        match reply.stop {
            Stop::Context | Stop::Length if is_full => {
                self.show.note(format!("[the reply ended because the context is full: {WAYS_OUT}]"));
            }
            Stop::Length => self
                .show
                .note("[the reply ended at its maximum length: /continue goes on, /set n sets another]"),
            _ => {}
        }
    }

    fn overflow(&self) -> Overflow {
        self.sampling.overflow.overflow()
    }

    /// The settings of the samplers, as a line.
    pub fn settings(&self) -> String {
        let sampling = sampling(&self.sampling, self.session.model());
        format!("{}; /set NAME VALUE changes one", setting::described(&self.sampling, &sampling))
    }

    /// Changes a setting; returns all of them.
    ///
    /// # Errors
    /// When the name or the value is wrong; nothing changes then.
    pub fn set(&mut self, text: &str) -> Result<String> {
        let changed = setting::changed(&self.sampling, text)?;
        sampling(&changed, self.session.model()).check()?;
        self.sampling = changed;
        Ok(setting::described(&self.sampling, &sampling(&self.sampling, self.session.model())))
    }

    /// The model, the room that the context has left after `dialogue`, and the settings.
    ///
    /// # Errors
    /// When the template refuses the conversation.
    pub fn described(&self, dialogue: &Dialogue) -> Result<String> {
        let model = self.session.model();
        // Some templates refuse an empty conversation.
        let is_empty = dialogue.messages().is_empty();
        let used = if is_empty { 0 } else { self.prompt(dialogue)?.tokens.len() };
        let left = (self.context as usize).saturating_sub(used);
        Ok(format!(
            "model: {}\ncontext: {used} of {} used, {left} left\nsettings: {}",
            model.name(),
            counted(self.context as usize, "token"),
            self.settings()
        ))
    }

    /// Whether the same conversation always has the same reply, whatever the seed.
    pub fn is_greedy(&self) -> bool {
        sampling(&self.sampling, self.session.model()).temperature == 0.0
    }
}
