//! The reply of `/v1/completions`: whole, and in chunks.

use std::collections::BTreeMap;

use girih::{Logprobs, Model, ReplyPart};
use serde::Serialize;
use utoipa::ToSchema;

use super::reply_head::{FAILED, ReplyHead};
use super::usage::UsageBody;
use crate::api::token_text::{finite, token_bytes};
use crate::error::{ApiError, Dialect, ErrorObject};
use crate::generation::{Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::sse::{EventWriter, write_data, write_named};

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionReply {
    #[serde(flatten)]
    head: ReplyHead,
    choices: Vec<CompletionChoice>,
    usage: UsageBody,
}

/// One of the replies, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
struct CompletionChoice {
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    /// Why the reply failed; its `finish_reason` is then `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject>,
}

/// Log-probabilities in the form of this endpoint: lists of equal length.
#[derive(Debug, Default, Serialize, ToSchema)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of an echoed prompt, which follows nothing.
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// The number of characters before each token, in the reply as it is spelled by its tokens.
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token that `offset` characters precede; returns the offset of the next one.
    fn push(&mut self, id: u32, logprobs: Option<&Logprobs>, offset: usize, model: &Model) -> usize {
        let text = |id| String::from_utf8_lossy(&token_bytes(id, model)).into_owned();
        let token = text(id);
        let end = offset + token.chars().count();
        self.tokens.push(token);
        self.token_logprobs.push(logprobs.map(|logprobs| finite(logprobs.chosen.value)));
        // Tokens of the same text are one key, with the highest value.
        let top = |logprobs: &Logprobs| {
            logprobs.top.iter().rev().map(|top| (text(top.id), finite(top.value))).collect()
        };
        self.top_logprobs.push(logprobs.map(top));
        self.text_offset.push(offset);
        end
    }
}

/// What each choice begins with: the prompts if they are echoed.
#[derive(Clone, Debug, Default)]
pub struct EchoedTexts {
    /// One for each prompt; none if nothing is echoed.
    pub prompts: Vec<String>,
    /// The number of replies to each prompt.
    pub count: usize,
    /// Whether the prompt's tokens come as events, with their log-probabilities.
    pub has_tokens: bool,
}

impl EchoedTexts {
    fn of(&self, choice: usize) -> &str {
        self.prompts.get(choice / self.count.max(1)).map_or("", String::as_str)
    }
}

/// A choice as far as it was read.
#[derive(Debug)]
struct ChoiceProgress {
    has_begun: bool,
    /// The offset of the next token.
    offset: usize,
}

/// Turns the events of a generation into choices that hold a piece of text each.
struct ChoicePieces {
    echoed: EchoedTexts,
    choices: Vec<ChoiceProgress>,
}

impl ChoicePieces {
    fn new(echoed: EchoedTexts, choices: usize) -> ChoicePieces {
        let offset = |choice| if echoed.has_tokens { 0 } else { echoed.of(choice).chars().count() };
        let progress = |choice| ChoiceProgress { has_begun: false, offset: offset(choice) };
        let choices = (0..choices).map(progress).collect();
        ChoicePieces { echoed, choices }
    }

    /// The piece that an event brings, if any.
    fn piece(&mut self, event: GenerationEvent, model: &Model) -> Option<CompletionChoice> {
        let index = event.choice;
        let progress = &mut self.choices[index as usize];
        let (mut lists, mut error) = (None, None);
        let mut push = |id, logprobs: Option<&Logprobs>| {
            let lists = lists.get_or_insert_with(CompletionLogprobs::default);
            progress.offset = lists.push(id, logprobs, progress.offset, model);
        };
        let (parts, reason) = match event.kind {
            GenerationEventKind::Prefilled => return None,
            GenerationEventKind::PromptToken { id, logprobs } => {
                push(id, logprobs.as_ref());
                (Vec::new(), None)
            }
            GenerationEventKind::Token { id, parts, logprobs } => {
                if logprobs.is_some() {
                    push(id, logprobs.as_ref());
                }
                (parts, None)
            }
            GenerationEventKind::Finished { parts, reason, .. } => (parts, Some(reason.name())),
            GenerationEventKind::Failed(failure) => {
                error = Some(failure.openai_object());
                (Vec::new(), Some(FAILED))
            }
        };
        let mut text = String::new();
        if !std::mem::replace(&mut progress.has_begun, true) {
            text.push_str(self.echoed.of(index as usize));
        }
        for part in &parts {
            if let ReplyPart::Content(content) = part {
                text.push_str(content);
            }
        }
        let is_empty = text.is_empty() && lists.is_none() && reason.is_none();
        let (logprobs, finish_reason) = (lists, reason);
        (!is_empty).then_some(CompletionChoice { index, text, logprobs, finish_reason, error })
    }
}

impl CompletionReply {
    /// Reads a generation to its end.
    ///
    /// # Errors
    /// When all replies fail.
    pub async fn read(
        head: ReplyHead,
        echoed: EchoedTexts,
        mut generation: Generation,
    ) -> Result<CompletionReply, ApiError> {
        let empty = |index| CompletionChoice {
            index,
            text: String::new(),
            logprobs: None,
            finish_reason: None,
            error: None,
        };
        let mut choices: Vec<CompletionChoice> = (0..generation.replies() as u32).map(empty).collect();
        let mut pieces = ChoicePieces::new(echoed, choices.len());
        while let Some(events) = generation.next_events().await {
            for event in events? {
                let Some(piece) = pieces.piece(event, &generation.model) else { continue };
                choices[piece.index as usize].append(piece);
            }
        }
        Ok(CompletionReply { head, choices, usage: generation.usage().into() })
    }
}

impl CompletionChoice {
    fn append(&mut self, piece: CompletionChoice) {
        self.text.push_str(&piece.text);
        self.finish_reason = piece.finish_reason.or(self.finish_reason);
        self.error = piece.error.or(self.error.take());
        if let Some(more) = piece.logprobs {
            let lists = self.logprobs.get_or_insert_default();
            lists.tokens.extend(more.tokens);
            lists.token_logprobs.extend(more.token_logprobs);
            lists.top_logprobs.extend(more.top_logprobs);
            lists.text_offset.extend(more.text_offset);
        }
    }
}

/// A piece of a streamed reply.
#[derive(Serialize)]
struct CompletionChunk<'a> {
    #[serde(flatten)]
    head: &'a ReplyHead,
    choices: &'a [CompletionChoice],
    /// Absent unless the usage was asked for; null but in the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

/// Writes the chunks of a streamed reply, one for each token that brings text.
pub struct CompletionChunks {
    head: ReplyHead,
    includes_usage: bool,
    pieces: ChoicePieces,
}

impl CompletionChunks {
    /// The writer of a reply with this number of choices.
    pub fn new(
        head: ReplyHead,
        echoed: EchoedTexts,
        choices: usize,
        includes_usage: bool,
    ) -> CompletionChunks {
        CompletionChunks { head, includes_usage, pieces: ChoicePieces::new(echoed, choices) }
    }
}

impl EventWriter for CompletionChunks {
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        if let Some(piece) = self.pieces.piece(event, &generation.model) {
            let usage = self.includes_usage.then_some(None);
            write_data(out, &CompletionChunk { head: &self.head, choices: &[piece], usage });
        }
    }

    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>) {
        if self.includes_usage {
            let usage = Some(Some(usage.into()));
            write_data(out, &CompletionChunk { head: &self.head, choices: &[], usage });
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_named(out, "error", &error.body(Dialect::OpenAi));
    }
}
