//! How a reply of `/v1/responses` is made: its items grow with the parts of the reply, and each
//! change is an event of a streamed reply.

use girih::ReplyPart;
use serde::Serialize;

use super::response::{OutputItem, OutputPart, ResponseError, ResponseObject, ResponseStatus};
use crate::api::openai::logprobs::TokenLogprob;
use crate::error::ApiError;
use crate::generation::{FinishReason, Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::request_id::new_id;
use crate::sse::{EventWriter, write_named};

/// Reads a generation to its end.
///
/// # Errors
/// When the reply fails.
pub async fn read(response: ResponseObject, mut generation: Generation) -> Result<ResponseObject, ApiError> {
    let mut events = ResponseEvents { is_silent: true, ..ResponseEvents::new(response) };
    let mut out = Vec::new();
    while let Some(read) = generation.next_events().await {
        for event in read? {
            events.event(event, &generation, &mut out);
        }
    }
    events.response.usage = Some(generation.usage().into());
    Ok(events.response)
}

/// An event of a streamed reply.
#[derive(Serialize)]
struct ResponseEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u32,
    #[serde(flatten)]
    content: EventContent<'a>,
}

/// What an event has besides its type and number.
#[derive(Serialize)]
#[serde(untagged)]
enum EventContent<'a> {
    Response {
        response: &'a ResponseObject,
    },
    Item {
        output_index: usize,
        item: &'a OutputItem,
    },
    Part {
        item_id: &'a str,
        output_index: usize,
        content_index: u32,
        part: &'a OutputPart,
    },
    Text {
        item_id: &'a str,
        output_index: usize,
        content_index: u32,
        #[serde(flatten)]
        text: TextContent<'a>,
    },
    Arguments {
        item_id: &'a str,
        output_index: usize,
        #[serde(flatten)]
        text: ArgumentsContent<'a>,
    },
}

/// The text of an event.
#[derive(Serialize)]
struct TextContent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Absent for thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [TokenLogprob]>,
}

/// The arguments of an event.
#[derive(Serialize)]
struct ArgumentsContent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
}

/// Makes a reply, and writes its events.
pub struct ResponseEvents {
    response: ResponseObject,
    /// Whether the last item is open.
    is_open: bool,
    /// Log-probabilities of tokens whose text is not complete.
    logprobs: Vec<TokenLogprob>,
    /// The number of events so far.
    events: u32,
    /// Whether nothing is written, because the reply is read whole.
    is_silent: bool,
}

impl ResponseEvents {
    /// The writer of a reply that has begun.
    pub fn new(response: ResponseObject) -> ResponseEvents {
        ResponseEvents { response, is_open: false, logprobs: Vec::new(), events: 0, is_silent: false }
    }

    fn write_response(&mut self, kind: &'static str, out: &mut Vec<u8>) {
        let content = EventContent::Response { response: &self.response };
        write(self.is_silent, &mut self.events, kind, content, out);
    }

    /// Begins an item.
    fn open(&mut self, item: OutputItem, out: &mut Vec<u8>) {
        self.close(ResponseStatus::Completed, out);
        self.is_open = true;
        self.response.output.push(item);
        let ResponseEvents { response, events, is_silent, .. } = self;
        let (output_index, item) = (response.output.len() - 1, &mut response.output);
        let item = &mut item[output_index];
        let content = EventContent::Item { output_index, item };
        write(*is_silent, events, "response.output_item.added", content, out);
        let is_message = matches!(item, OutputItem::Message { .. });
        let (OutputItem::Message { id, content, .. } | OutputItem::Reasoning { id, content, .. }) = item
        else {
            return;
        };
        let text = String::new();
        content.push(match is_message {
            true => OutputPart::OutputText { text, annotations: Vec::new(), logprobs: Vec::new() },
            false => OutputPart::ReasoningText { text },
        });
        let part = EventContent::Part { item_id: id, output_index, content_index: 0, part: &content[0] };
        write(*is_silent, events, "response.content_part.added", part, out);
    }

    /// Ends the item that is open.
    fn close(&mut self, status: ResponseStatus, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let ResponseEvents { response, events, is_silent, .. } = self;
        let output_index = response.output.len() - 1;
        let item = &mut response.output[output_index];
        item.set_status(status);
        let item_id = item.id();
        match &*item {
            OutputItem::Message { content, .. } | OutputItem::Reasoning { content, .. } => {
                for part in content {
                    let (kind, text, logprobs) = match part {
                        OutputPart::OutputText { text, logprobs, .. } => {
                            ("response.output_text.done", text, Some(logprobs.as_slice()))
                        }
                        OutputPart::ReasoningText { text } => ("response.reasoning_text.done", text, None),
                    };
                    let text = TextContent { delta: None, text: Some(text), logprobs };
                    let content = EventContent::Text { item_id, output_index, content_index: 0, text };
                    write(*is_silent, events, kind, content, out);
                    let content = EventContent::Part { item_id, output_index, content_index: 0, part };
                    write(*is_silent, events, "response.content_part.done", content, out);
                }
            }
            OutputItem::FunctionCall { name, arguments, .. } => {
                let text = ArgumentsContent { delta: None, name: Some(name), arguments: Some(arguments) };
                let content = EventContent::Arguments { item_id, output_index, text };
                write(*is_silent, events, "response.function_call_arguments.done", content, out);
            }
        }
        let content = EventContent::Item { output_index, item };
        write(*is_silent, events, "response.output_item.done", content, out);
    }

    /// Adds text to the item that is open.
    fn extend(&mut self, more: &str, out: &mut Vec<u8>) {
        let ResponseEvents { response, events, is_silent, logprobs, .. } = self;
        let Some(output_index) = response.output.len().checked_sub(1) else { return };
        let text = |logprobs| TextContent { delta: Some(more), text: None, logprobs };
        let (kind, content) = match &mut response.output[output_index] {
            OutputItem::Message { id, content, .. } => {
                let Some(OutputPart::OutputText { text: all, logprobs: all_logprobs, .. }) =
                    content.last_mut()
                else {
                    return;
                };
                all.push_str(more);
                let before = all_logprobs.len();
                all_logprobs.append(logprobs);
                let text = text(Some(&all_logprobs[before..]));
                let content = EventContent::Text { item_id: id, output_index, content_index: 0, text };
                ("response.output_text.delta", content)
            }
            OutputItem::Reasoning { id, content, .. } => {
                let Some(OutputPart::ReasoningText { text: all }) = content.last_mut() else { return };
                all.push_str(more);
                logprobs.clear();
                let text = text(None);
                let content = EventContent::Text { item_id: id, output_index, content_index: 0, text };
                ("response.reasoning_text.delta", content)
            }
            OutputItem::FunctionCall { id, arguments, .. } => {
                arguments.push_str(more);
                logprobs.clear();
                let text = ArgumentsContent { delta: Some(more), name: None, arguments: None };
                let content = EventContent::Arguments { item_id: id, output_index, text };
                ("response.function_call_arguments.delta", content)
            }
        };
        write(*is_silent, events, kind, content, out);
    }

    fn part(&mut self, part: &ReplyPart, out: &mut Vec<u8>) {
        let status = ResponseStatus::InProgress;
        let last = self.response.output.last().filter(|_| self.is_open);
        match part {
            ReplyPart::Content(text) => {
                if !matches!(last, Some(OutputItem::Message { .. })) {
                    let (id, role) = (format!("msg_{}", new_id()), "assistant");
                    self.open(OutputItem::Message { id, status, role, content: Vec::new() }, out);
                }
                self.extend(text, out);
            }
            ReplyPart::Thinking(text) => {
                if !matches!(last, Some(OutputItem::Reasoning { .. })) {
                    let (id, summary) = (format!("rs_{}", new_id()), Vec::new());
                    self.open(OutputItem::Reasoning { id, status, summary, content: Vec::new() }, out);
                }
                self.extend(text, out);
            }
            ReplyPart::CallBegin { id, name } => {
                let (call_id, name, arguments) = (id.clone(), name.clone(), String::new());
                let id = format!("fc_{}", new_id());
                self.open(OutputItem::FunctionCall { id, status, call_id, name, arguments }, out);
            }
            ReplyPart::Arguments(text) => self.extend(text, out),
            ReplyPart::CallEnd { fault } => {
                let is_whole = fault.is_none();
                let status = if is_whole { ResponseStatus::Completed } else { ResponseStatus::Incomplete };
                self.close(status, out);
            }
            _ => {}
        }
    }
}

/// Writes an event, unless the reply is read whole.
fn write(
    is_silent: bool,
    events: &mut u32,
    kind: &'static str,
    content: EventContent<'_>,
    out: &mut Vec<u8>,
) {
    if is_silent {
        return;
    }
    let event = ResponseEvent { kind, sequence_number: *events, content };
    *events = events.saturating_add(1);
    write_named(out, kind, &event);
}

impl ResponseEvents {
    /// Writes the events before all others, once.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.events == 0 {
            self.write_response("response.created", out);
            self.write_response("response.in_progress", out);
        }
    }
}

impl EventWriter for ResponseEvents {
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        self.begin(out);
        match event.kind {
            GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => {}
            GenerationEventKind::Failed(error) => self.error(&error, out),
            GenerationEventKind::Token { parts, logprobs, .. } => {
                self.logprobs.extend(logprobs.map(|logprobs| TokenLogprob::of(&logprobs, &generation.model)));
                parts.iter().for_each(|part| self.part(part, out));
            }
            GenerationEventKind::Finished { parts, reason, .. } => {
                parts.iter().for_each(|part| self.part(part, out));
                let is_cut = matches!(reason, FinishReason::Length | FinishReason::Repetition);
                self.close(if is_cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed }, out);
                self.response.end(&reason);
            }
        }
    }

    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>) {
        self.response.usage = Some(usage.into());
        let is_whole = self.response.status == ResponseStatus::Completed;
        self.write_response(if is_whole { "response.completed" } else { "response.incomplete" }, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.begin(out);
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(ResponseError { code: "server_error", message: error.message.clone() });
        self.write_response("response.failed", out);
    }
}
