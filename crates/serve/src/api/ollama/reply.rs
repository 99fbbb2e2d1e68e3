//! The replies of `/api/chat` and `/api/generate`: whole, and as lines of JSON.

use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use girih::{ReplyPart, Stats};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::logprobs::OllamaLogprobs;
use super::timestamp;
use crate::error::{ApiError, Dialect};
use crate::generation::{FinishReason, Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::keep_alive::KeepAlive;
use crate::sse::{EventWriter, stream_response, write_json};

/// A reply of `/api/chat` or `/api/generate`, or a piece of one.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct OllamaReply {
    /// The model's name.
    pub model: String,
    /// When the piece was made, in the form of RFC 3339.
    pub created_at: String,
    /// The message, of `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<ReplyBody>,
    /// The text, of `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The thinking, of `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The log-probabilities of the tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<OllamaLogprobs>,
    /// Whether this is the last piece.
    pub done: bool,
    /// Why the reply ended: `stop`, `length` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// Counts and times, in the last piece.
    #[serde(flatten)]
    #[schema(value_type = ReplyTimes)]
    pub times: Option<ReplyTimes>,
}

/// The message of a reply.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ReplyBody {
    /// `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
    /// Its thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Its calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ReplyCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyCall {
    /// Its id.
    pub id: String,
    /// The tool and its arguments.
    pub function: ReplyFunction,
}

/// A tool and its arguments.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyFunction {
    /// The number of the call in the reply.
    pub index: u32,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
}

/// Counts of tokens, and times in nanoseconds. Only the last piece of a stream has them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct ReplyTimes {
    /// From the request to its end.
    #[schema(required = false)]
    pub total_duration: u64,
    /// How long the request waited for the model to be loaded.
    #[schema(required = false)]
    pub load_duration: u64,
    /// Tokens of the prompt.
    #[schema(required = false)]
    pub prompt_eval_count: u32,
    /// The time of prefill.
    #[schema(required = false)]
    pub prompt_eval_duration: u64,
    /// Tokens of the reply.
    #[schema(required = false)]
    pub eval_count: u32,
    /// The time of decode.
    #[schema(required = false)]
    pub eval_duration: u64,
}

/// Which of the two routes replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OllamaRoute {
    /// `/api/chat`.
    Chat,
    /// `/api/generate`.
    Generate,
}

/// The reply to a request without a prompt, which only loads a model, or unloads it.
pub fn loaded_reply(route: OllamaRoute, model: &str, keep: Option<KeepAlive>) -> Response {
    let unloads = keep == Some(KeepAlive::For(Duration::ZERO));
    let done_reason = Some(if unloads { "unload" } else { "load" });
    let reply = OllamaReply { done: true, done_reason, ..route.reply(model, Piece::default()) };
    Json(reply).into_response()
}

/// The reply of a generation: as lines if it is streamed.
///
/// # Errors
/// When the reply fails, or has a call whose arguments are not a JSON object.
pub async fn reply(
    route: OllamaRoute,
    begun: Instant,
    generation: Generation,
    is_stream: bool,
) -> Result<Response, ApiError> {
    let lines = ReplyLines {
        route,
        begun,
        model: generation.model_name.to_string(),
        load_time: generation.load_time,
        call: None,
        calls: 0,
        end: None,
        has_failed: false,
    };
    if is_stream {
        return stream_response(generation, lines).await;
    }
    Ok(Json(lines.read(generation).await?).into_response())
}

/// What a piece of a reply adds.
#[derive(Clone, Debug, Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<ReplyCall>,
    logprobs: Vec<OllamaLogprobs>,
}

impl OllamaRoute {
    fn reply(self, model: &str, piece: Piece) -> OllamaReply {
        let Piece { content, thinking, calls, logprobs } = piece;
        let thinking = (!thinking.is_empty()).then_some(thinking);
        let reply = OllamaReply {
            model: model.to_owned(),
            created_at: timestamp::now(),
            logprobs,
            ..OllamaReply::default()
        };
        match self {
            OllamaRoute::Chat => {
                let message = ReplyBody { role: "assistant", content, thinking, tool_calls: calls };
                OllamaReply { message: Some(message), ..reply }
            }
            OllamaRoute::Generate => OllamaReply { response: Some(content), thinking, ..reply },
        }
    }
}

/// Writes the lines of a reply. A call of a tool is one line, when it is complete.
struct ReplyLines {
    route: OllamaRoute,
    begun: Instant,
    model: String,
    load_time: Duration,
    /// The id, the name and the arguments of the call that is being read.
    call: Option<(String, String, String)>,
    /// The number of complete calls.
    calls: u32,
    /// Why the reply ended, and its times.
    end: Option<(FinishReason, Stats)>,
    /// Whether an error was written, after which nothing follows.
    has_failed: bool,
}

impl ReplyLines {
    /// What an event adds; `None` if that is nothing. A call that is cut is left out.
    fn piece(
        &mut self,
        kind: GenerationEventKind,
        generation: &Generation,
    ) -> Result<Option<Piece>, ApiError> {
        let mut piece = Piece::default();
        let (parts, is_cut) = match kind {
            GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => return Ok(None),
            GenerationEventKind::Failed(error) => return Err(error),
            GenerationEventKind::Token { parts, logprobs, .. } => {
                piece
                    .logprobs
                    .extend(logprobs.map(|logprobs| OllamaLogprobs::of(&logprobs, &generation.model)));
                (parts, false)
            }
            GenerationEventKind::Finished { parts, reason, stats } => {
                let is_cut = reason.may_cut_calls();
                self.end = Some((reason, stats));
                (parts, is_cut)
            }
        };
        for part in parts {
            match part {
                ReplyPart::Content(text) => piece.content += &text,
                ReplyPart::Thinking(text) => piece.thinking += &text,
                ReplyPart::CallBegin { id, name } => self.call = Some((id, name, String::new())),
                ReplyPart::Arguments(text) => {
                    if let Some((_, _, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                }
                ReplyPart::CallEnd { fault: Some(_) } if is_cut => {}
                ReplyPart::CallEnd { fault } => piece.calls.extend(self.complete_call(fault)?),
                _ => {}
            }
        }
        let Piece { content, thinking, calls, logprobs } = &piece;
        let is_empty = content.is_empty() && thinking.is_empty() && calls.is_empty() && logprobs.is_empty();
        Ok((!is_empty).then_some(piece))
    }

    fn complete_call(&mut self, fault: Option<&str>) -> Result<Option<ReplyCall>, ApiError> {
        let Some((id, name, arguments)) = self.call.take() else { return Ok(None) };
        let fault = fault.unwrap_or("they are not an object");
        let arguments = serde_json::from_str(&arguments).map_err(|_| ApiError::invalid_call(&name, fault))?;
        self.calls += 1;
        let function = ReplyFunction { index: self.calls - 1, name, arguments };
        Ok(Some(ReplyCall { id, function }))
    }

    /// The last piece.
    fn last(&self, piece: Piece, usage: TokenUsage) -> OllamaReply {
        let (reason, stats) = self.end.clone().unwrap_or((FinishReason::End, Stats::default()));
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let times = ReplyTimes {
            total_duration: nanoseconds(self.begun.elapsed()),
            load_duration: nanoseconds(self.load_time),
            prompt_eval_count: usage.prompt,
            prompt_eval_duration: nanoseconds(stats.prefill.time),
            eval_count: usage.reply,
            eval_duration: nanoseconds(stats.decode.time),
        };
        let done_reason = Some(match reason {
            FinishReason::Length | FinishReason::Repetition => reason.name(),
            _ => "stop",
        });
        let reply = self.route.reply(&self.model, piece);
        OllamaReply { done: true, done_reason, times: Some(times), ..reply }
    }

    /// Reads a generation to its end.
    async fn read(mut self, mut generation: Generation) -> Result<OllamaReply, ApiError> {
        let mut all = Piece::default();
        while let Some(events) = generation.next_events().await {
            for GenerationEvent { kind, .. } in events? {
                let Some(piece) = self.piece(kind, &generation)? else { continue };
                all.content += &piece.content;
                all.thinking += &piece.thinking;
                all.calls.extend(piece.calls);
                all.logprobs.extend(piece.logprobs);
            }
        }
        Ok(self.last(all, generation.usage()))
    }

    fn write(&self, reply: &OllamaReply, out: &mut Vec<u8>) {
        write_json(out, reply);
        out.push(b'\n');
    }
}

impl EventWriter for ReplyLines {
    fn media_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        if self.has_failed {
            return;
        }
        match self.piece(event.kind, generation) {
            Ok(None) => {}
            Ok(Some(piece)) => self.write(&self.route.reply(&self.model, piece), out),
            Err(error) => self.error(&error, out),
        }
    }

    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>) {
        if !self.has_failed {
            self.write(&self.last(Piece::default(), usage), out);
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.has_failed = true;
        write_json(out, &error.body(Dialect::Ollama));
        out.push(b'\n');
    }

    /// A piece that adds nothing, as lines of JSON have no comments.
    fn ping(&mut self, out: &mut Vec<u8>) {
        if !self.has_failed {
            self.write(&self.route.reply(&self.model, Piece::default()), out);
        }
    }
}
