//! The reply of `/v1/chat/completions`: whole, and in chunks.

use girih::{ReplyMessage, ReplyPart, ToolCall};
use serde::Serialize;
use utoipa::ToSchema;

use super::functions::CallWireForm;
use super::logprobs::{ChoiceLogprobs, TokenLogprob};
use super::reply_head::{FAILED, ReplyHead};
use super::usage::UsageBody;
use crate::error::{ApiError, Dialect, ErrorObject};
use crate::generation::{FinishReason, Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::sse::{EventWriter, write_data, write_named};

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatReply {
    #[serde(flatten)]
    head: ReplyHead,
    choices: Vec<ChatChoice>,
    usage: UsageBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatChoice {
    index: u32,
    message: AssistantMessage,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: &'static str,
    /// Why the reply failed; its `finish_reason` is then `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AssistantMessage {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallBody>,
    /// The call, if the request had `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionBody>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CallBody {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct FunctionBody {
    name: String,
    arguments: String,
}

impl ChatReply {
    /// Reads a generation to its end.
    ///
    /// # Errors
    /// When all replies fail.
    pub async fn read(
        head: ReplyHead,
        mut generation: Generation,
        form: CallWireForm,
    ) -> Result<ChatReply, ApiError> {
        let mut choices: Vec<ReadChoice> = (0..generation.replies()).map(|_| ReadChoice::default()).collect();
        while let Some(events) = generation.next_events().await {
            for GenerationEvent { choice, kind } in events? {
                choices[choice as usize].push(kind, &generation);
            }
        }
        let choices = (0..).zip(choices).map(|(index, choice)| choice.body(index, form)).collect();
        Ok(ChatReply { head, choices, usage: generation.usage().into() })
    }
}

/// A reply as far as it was read.
#[derive(Default)]
struct ReadChoice {
    message: ReplyMessage,
    logprobs: Option<ChoiceLogprobs>,
    /// Why it ended, or failed.
    end: Option<Result<FinishReason, ApiError>>,
}

impl ReadChoice {
    fn push(&mut self, kind: GenerationEventKind, generation: &Generation) {
        match kind {
            GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => {}
            GenerationEventKind::Token { parts, logprobs, .. } => {
                parts.iter().for_each(|part| self.message.push(part));
                if let Some(logprobs) = logprobs {
                    let logprob = TokenLogprob::of(&logprobs, &generation.model);
                    self.logprobs.get_or_insert_default().content.push(logprob);
                }
            }
            GenerationEventKind::Finished { parts, reason, .. } => {
                parts.iter().for_each(|part| self.message.push(part));
                self.end = Some(Ok(reason));
            }
            GenerationEventKind::Failed(error) => self.end = Some(Err(error)),
        }
    }

    fn body(self, index: u32, form: CallWireForm) -> ChatChoice {
        let ReplyMessage { content, thinking, calls } = self.message;
        let has_content = !content.is_empty() || calls.is_empty();
        let mut calls: Vec<CallBody> = calls.into_iter().map(CallBody::from).collect();
        // Such a reply ends after its first call.
        let function_call = (form == CallWireForm::Function).then(|| calls.pop()).flatten();
        let message = AssistantMessage {
            role: "assistant",
            content: has_content.then_some(content),
            refusal: None,
            reasoning_content: (!thinking.is_empty()).then_some(thinking),
            tool_calls: calls,
            function_call: function_call.map(|call| call.function),
        };
        let (finish_reason, error) = match self.end.expect("a generation that ended has a reason") {
            Ok(reason) => (form.reason(&reason), None),
            Err(error) => (FAILED, Some(error.openai_object())),
        };
        ChatChoice { index, message, logprobs: self.logprobs, finish_reason, error }
    }
}

impl From<ToolCall> for CallBody {
    fn from(call: ToolCall) -> CallBody {
        let function = FunctionBody { name: call.name, arguments: call.arguments };
        CallBody { id: call.id, kind: "function", function }
    }
}

impl CallWireForm {
    /// The word for why a reply ended.
    fn reason(self, reason: &FinishReason) -> &'static str {
        match (self, reason) {
            (CallWireForm::Function, FinishReason::ToolCalls) => "function_call",
            _ => reason.name(),
        }
    }
}

/// A piece of a streamed reply.
#[derive(Serialize)]
struct ChatChunk<'a> {
    #[serde(flatten)]
    head: &'a ReplyHead,
    choices: &'a [ChunkChoice<'a>],
    /// Absent unless the usage was asked for; null but in the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: ChatDelta<'a>,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: Option<&'static str>,
    /// As in a whole reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject>,
}

impl<'a> ChunkChoice<'a> {
    /// A piece before the last one.
    fn piece(index: u32, delta: ChatDelta<'a>, logprobs: Option<ChoiceLogprobs>) -> ChunkChoice<'a> {
        ChunkChoice { index, delta, logprobs, finish_reason: None, error: None }
    }

    /// The last piece.
    fn last(index: u32, finish_reason: &'static str, error: Option<ErrorObject>) -> ChunkChoice<'a> {
        let finish_reason = Some(finish_reason);
        ChunkChoice { index, delta: ChatDelta::default(), logprobs: None, finish_reason, error }
    }
}

#[derive(Default, Serialize)]
struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionDelta<'a>>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// Writes the chunks of a streamed reply. Each part of a token is a chunk, so that the chunks
/// depend on the request alone, not on when tokens come.
pub struct ChatChunks {
    head: ReplyHead,
    includes_usage: bool,
    form: CallWireForm,
    /// For each choice, the number of calls that have begun; `None` before its first chunk.
    calls: Vec<Option<u32>>,
}

impl ChatChunks {
    /// The writer of a reply with this number of choices.
    pub fn new(head: ReplyHead, choices: usize, includes_usage: bool, form: CallWireForm) -> ChatChunks {
        ChatChunks { head, includes_usage, form, calls: vec![None; choices] }
    }

    fn write(&self, choice: ChunkChoice<'_>, out: &mut Vec<u8>) {
        let usage = self.includes_usage.then_some(None);
        write_data(out, &ChatChunk { head: &self.head, choices: &[choice], usage });
    }

    /// Writes the role before anything else of a choice.
    fn open(&mut self, index: u32, out: &mut Vec<u8>) {
        if self.calls[index as usize].is_none() {
            self.calls[index as usize] = Some(0);
            let delta = ChatDelta { role: Some("assistant"), content: Some(""), ..ChatDelta::default() };
            self.write(ChunkChoice::piece(index, delta, None), out);
        }
    }

    fn parts(
        &mut self,
        index: u32,
        parts: &[ReplyPart],
        mut logprobs: Option<ChoiceLogprobs>,
        out: &mut Vec<u8>,
    ) {
        for part in parts {
            let Some(delta) = self.delta(index, part) else { continue };
            self.write(ChunkChoice::piece(index, delta, logprobs.take()), out);
        }
        // The token of a marker, or of half a character.
        if logprobs.is_some() {
            self.write(ChunkChoice::piece(index, ChatDelta::default(), logprobs), out);
        }
    }

    fn delta<'a>(&mut self, index: u32, part: &'a ReplyPart) -> Option<ChatDelta<'a>> {
        let calls = self.calls[index as usize].get_or_insert(0);
        let form = self.form;
        let call = |call: CallDelta<'a>| {
            Some(match form {
                CallWireForm::Tools => ChatDelta { tool_calls: Some([call]), ..ChatDelta::default() },
                CallWireForm::Function => {
                    ChatDelta { function_call: Some(call.function), ..ChatDelta::default() }
                }
            })
        };
        match part {
            ReplyPart::Content(text) => Some(ChatDelta { content: Some(text), ..ChatDelta::default() }),
            ReplyPart::Thinking(text) => {
                Some(ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() })
            }
            ReplyPart::CallBegin { id, name } => {
                let function = FunctionDelta { name: Some(name), arguments: "" };
                *calls += 1;
                call(CallDelta { index: *calls - 1, id: Some(id), kind: Some("function"), function })
            }
            ReplyPart::Arguments(text) => {
                let function = FunctionDelta { name: None, arguments: text };
                call(CallDelta { index: calls.saturating_sub(1), id: None, kind: None, function })
            }
            _ => None,
        }
    }
}

impl EventWriter for ChatChunks {
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        let index = event.choice;
        self.open(index, out);
        match event.kind {
            GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => {}
            GenerationEventKind::Token { parts, logprobs, .. } => {
                let one = |logprobs| ChoiceLogprobs {
                    content: vec![TokenLogprob::of(logprobs, &generation.model)],
                };
                self.parts(index, &parts, logprobs.as_ref().map(one), out);
            }
            GenerationEventKind::Finished { parts, reason, .. } => {
                self.parts(index, &parts, None, out);
                self.write(ChunkChoice::last(index, self.form.reason(&reason), None), out);
            }
            GenerationEventKind::Failed(error) => {
                self.write(ChunkChoice::last(index, FAILED, Some(error.openai_object())), out);
            }
        }
    }

    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>) {
        if self.includes_usage {
            let usage = Some(Some(usage.into()));
            write_data(out, &ChatChunk { head: &self.head, choices: &[], usage });
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_named(out, "error", &error.body(Dialect::OpenAi));
    }
}
