//! The reply of `/infill`: whole, and in pieces, in the form of llama-server.

use girih::{ReplyPart, Stats, TokenRate};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{ApiError, Dialect};
use crate::generation::{FinishReason, Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::sse::{EventWriter, write_data};

/// A whole reply, or the last piece of one.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct InfillReply {
    /// Always 0.
    index: u32,
    /// The text; of a stream, that since the last piece.
    content: String,
    /// True: this piece is the last one.
    stop: bool,
    /// The model's id.
    model: String,
    /// Tokens of the reply.
    tokens_predicted: u32,
    /// Tokens of the prompt.
    tokens_evaluated: u32,
    /// Those of them that were in the prefix cache.
    tokens_cached: u32,
    /// Always false: no prompt is cut.
    truncated: bool,
    /// Why the reply ended: `eos`, `word` (a stop string), `limit`, or `none`.
    stop_type: &'static str,
    /// The stop string, if one ended the reply.
    stopping_word: String,
    /// Counts and times.
    timings: InfillTimings,
}

/// Counts of tokens, and times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct InfillTimings {
    /// Tokens of the prompt that were in the prefix cache.
    cache_n: u32,
    /// The other tokens of the prompt.
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    /// Tokens of the reply after the first one.
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// A piece of a streamed reply that is not the last one.
#[derive(Serialize)]
struct InfillPiece {
    index: u32,
    content: String,
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
}

/// Reads the events of a reply.
pub struct InfillEvents {
    model: String,
    /// Whether the reply has no text.
    is_silent: bool,
    end: Option<(FinishReason, Stats)>,
}

impl InfillTimings {
    fn of(stats: &Stats) -> InfillTimings {
        let ms = |rate: &TokenRate| rate.time.as_secs_f64() * 1e3;
        let per_token = |rate: &TokenRate| ms(rate) / f64::from(rate.tokens.max(1));
        let (prompt, predicted) = (&stats.prefill, &stats.decode);
        InfillTimings {
            cache_n: stats.cached,
            prompt_n: prompt.tokens,
            prompt_ms: ms(prompt),
            prompt_per_token_ms: per_token(prompt),
            prompt_per_second: prompt.per_second(),
            predicted_n: predicted.tokens,
            predicted_ms: ms(predicted),
            predicted_per_token_ms: per_token(predicted),
            predicted_per_second: predicted.per_second(),
        }
    }
}

impl InfillReply {
    /// The fields of these names, each under its whole name. A `/` stands before a field within another; names that no
    /// field has are left out.
    pub fn cut_to(&self, fields: &[String]) -> Map<String, Value> {
        let whole = serde_json::to_value(self).expect("strings and numbers always serialize");
        let value = |name: &str| name.split('/').try_fold(&whole, |value, key| value.get(key)).cloned();
        fields.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
    }
}

impl InfillEvents {
    /// Those of a generation. If it `is_silent`, the reply has no text.
    pub fn new(generation: &Generation, is_silent: bool) -> InfillEvents {
        InfillEvents { model: generation.model_name.to_string(), is_silent, end: None }
    }

    /// Reads a generation to its end.
    ///
    /// # Errors
    /// When the reply fails.
    pub async fn read(mut self, mut generation: Generation) -> Result<InfillReply, ApiError> {
        let mut content = String::new();
        while let Some(events) = generation.next_events().await {
            for event in events? {
                content += &self.text(event.kind);
            }
        }
        Ok(InfillReply { content, ..self.last(generation.usage()) })
    }

    /// The text that an event brings.
    fn text(&mut self, kind: GenerationEventKind) -> String {
        let parts = match kind {
            GenerationEventKind::Token { parts, .. } => parts,
            GenerationEventKind::Finished { parts, reason, stats } => {
                self.end = Some((reason, stats));
                parts
            }
            // A request for one reply fails as a whole.
            GenerationEventKind::PromptToken { .. }
            | GenerationEventKind::Prefilled
            | GenerationEventKind::Failed(_) => Vec::new(),
        };
        let content = |part| match part {
            ReplyPart::Content(text) if !self.is_silent => Some(text),
            _ => None,
        };
        parts.into_iter().filter_map(content).collect()
    }

    /// The last piece, without text.
    fn last(&self, usage: TokenUsage) -> InfillReply {
        let (reason, stats) = self.end.clone().unwrap_or((FinishReason::End, Stats::default()));
        InfillReply {
            stop: true,
            model: self.model.clone(),
            tokens_predicted: if self.is_silent { 0 } else { usage.reply },
            tokens_evaluated: usage.prompt,
            tokens_cached: usage.cached,
            stop_type: match &reason {
                FinishReason::End | FinishReason::ToolCalls => "eos",
                FinishReason::StopString(_) => "word",
                FinishReason::Length => "limit",
                FinishReason::Repetition => "none",
            },
            stopping_word: match reason {
                FinishReason::StopString(text) => text,
                _ => String::new(),
            },
            timings: InfillTimings::of(&stats),
            ..InfillReply::default()
        }
    }
}

impl EventWriter for InfillEvents {
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        let content = self.text(event.kind);
        if !content.is_empty() {
            let TokenUsage { prompt, reply, .. } = generation.usage();
            let piece = InfillPiece {
                index: 0,
                content,
                stop: false,
                tokens_predicted: reply,
                tokens_evaluated: prompt,
            };
            write_data(out, &piece);
        }
    }

    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>) {
        write_data(out, &self.last(usage));
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_data(out, &error.body(Dialect::OpenAi));
    }
}
