//! The reply of `/v1/messages`: whole, and as events.

use girih::ReplyPart;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::call_input::CallInput;
use crate::error::{ApiError, Dialect};
use crate::generation::{FinishReason, Generation, GenerationEvent, GenerationEventKind, TokenUsage};
use crate::sse::{EventWriter, write_named};

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageReply {
    /// The reply's id.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`.
    pub role: &'static str,
    /// The model's id.
    pub model: String,
    /// Text, thinking and calls of tools, in the order in which the model wrote them.
    pub content: Vec<OutputBlock>,
    /// Why the reply ended; null while it is being made.
    pub stop_reason: Option<StopReason>,
    /// The text of `stop_sequences` that ended it.
    pub stop_sequence: Option<String>,
    /// The tokens of prompt and reply.
    pub usage: MessageUsage,
}

/// A block of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputBlock {
    /// Text for the user.
    Text {
        /// The text.
        text: String,
    },
    /// Text of the model for itself.
    Thinking {
        /// The text.
        thinking: String,
        /// Empty: thinking that a client sends back is not checked.
        signature: &'static str,
    },
    /// A call of a tool.
    ToolUse {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments.
        #[schema(value_type = CallInput)]
        input: Map<String, Value>,
    },
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // Anthropic's words
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    /// Of girih: the reply repeats itself.
    Repetition,
}

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct MessageUsage {
    /// Tokens of the prompt that were run.
    pub input_tokens: u32,
    /// 0: the prefix cache costs nothing.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were in the prefix cache.
    pub cache_read_input_tokens: u32,
    /// Tokens of the reply.
    pub output_tokens: u32,
    /// More about the reply.
    pub output_tokens_details: MessageOutputDetails,
}

/// More about the tokens of a reply.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct MessageOutputDetails {
    /// Tokens of thinking.
    pub thinking_tokens: u32,
}

impl From<TokenUsage> for MessageUsage {
    fn from(usage: TokenUsage) -> MessageUsage {
        MessageUsage {
            input_tokens: usage.prompt.saturating_sub(usage.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached,
            output_tokens: usage.reply,
            output_tokens_details: MessageOutputDetails { thinking_tokens: usage.thinking },
        }
    }
}

impl StopReason {
    /// Anthropic's word for the end of a reply, and the text that ended it.
    fn of(reason: FinishReason) -> (StopReason, Option<String>) {
        match reason {
            FinishReason::End => (StopReason::EndTurn, None),
            FinishReason::Length => (StopReason::MaxTokens, None),
            FinishReason::Repetition => (StopReason::Repetition, None),
            FinishReason::ToolCalls => (StopReason::ToolUse, None),
            FinishReason::StopString(text) => (StopReason::StopSequence, Some(text)),
        }
    }
}

impl MessageReply {
    /// A reply without content yet.
    fn begun(id: String, model: String, usage: TokenUsage) -> MessageReply {
        MessageReply {
            id,
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: usage.into(),
        }
    }

    /// Reads a generation to its end.
    ///
    /// # Errors
    /// When the reply fails, or has a call whose arguments are not a JSON object.
    pub async fn read(id: String, mut generation: Generation) -> Result<MessageReply, ApiError> {
        let (mut blocks, mut end) = (BlockReader::default(), None);
        while let Some(events) = generation.next_events().await {
            for GenerationEvent { kind, .. } in events? {
                match kind {
                    GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => {}
                    GenerationEventKind::Failed(error) => return Err(error),
                    GenerationEventKind::Token { parts, .. } => blocks.read(&parts, false)?,
                    GenerationEventKind::Finished { parts, reason, .. } => {
                        blocks.read(&parts, reason.may_cut_calls())?;
                        end = Some(reason);
                    }
                }
            }
        }
        let usage = generation.usage();
        let reply = MessageReply::begun(id, generation.model_name.to_string(), usage);
        let (reason, stop_sequence) = StopReason::of(end.expect("a generation that ended has a reason"));
        Ok(MessageReply { content: blocks.blocks, stop_reason: Some(reason), stop_sequence, ..reply })
    }
}

/// The blocks of a reply as far as it was read.
#[derive(Default)]
struct BlockReader {
    blocks: Vec<OutputBlock>,
    /// The text of the arguments of the call that is being read.
    arguments: String,
}

impl BlockReader {
    /// Adds parts; a call that is cut is left out.
    fn read(&mut self, parts: &[ReplyPart], is_cut: bool) -> Result<(), ApiError> {
        for part in parts {
            match (part, self.blocks.last_mut()) {
                (ReplyPart::Content(more), Some(OutputBlock::Text { text })) => text.push_str(more),
                (ReplyPart::Content(text), _) => self.blocks.push(OutputBlock::Text { text: text.clone() }),
                (ReplyPart::Thinking(more), Some(OutputBlock::Thinking { thinking, .. })) => {
                    thinking.push_str(more);
                }
                (ReplyPart::Thinking(text), _) => {
                    self.blocks.push(OutputBlock::Thinking { thinking: text.clone(), signature: "" });
                }
                (ReplyPart::CallBegin { id, name }, _) => {
                    let (id, name, input) = (id.clone(), name.clone(), Map::new());
                    self.blocks.push(OutputBlock::ToolUse { id, name, input });
                }
                (ReplyPart::Arguments(text), _) => self.arguments += text,
                (ReplyPart::CallEnd { fault: Some(_) }, _) if is_cut => {
                    self.blocks.pop();
                }
                (ReplyPart::CallEnd { fault }, Some(OutputBlock::ToolUse { name, input, .. })) => {
                    let arguments = std::mem::take(&mut self.arguments);
                    let fault = fault.unwrap_or("they are not an object");
                    *input =
                        serde_json::from_str(&arguments).map_err(|_| ApiError::invalid_call(name, fault))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// An event of a streamed reply.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)] // Anthropic's words
pub enum MessageEvent<'a> {
    MessageStart { message: &'a MessageReply },
    ContentBlockStart { index: u32, content_block: OutputBlock },
    ContentBlockDelta { index: u32, delta: BlockDelta<'a> },
    ContentBlockStop { index: u32 },
    MessageDelta { delta: MessageEnd, usage: MessageUsage },
    MessageStop,
    Ping,
}

/// What is added to a block.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)] // Anthropic's words
pub enum BlockDelta<'a> {
    TextDelta { text: &'a str },
    ThinkingDelta { thinking: &'a str },
    SignatureDelta { signature: &'static str },
    InputJsonDelta { partial_json: &'a str },
}

/// Why a reply ended, in its last event but one.
#[derive(Serialize, ToSchema)]
pub struct MessageEnd {
    stop_reason: StopReason,
    stop_sequence: Option<String>,
}

impl MessageEvent<'_> {
    fn name(&self) -> &'static str {
        match self {
            MessageEvent::MessageStart { .. } => "message_start",
            MessageEvent::ContentBlockStart { .. } => "content_block_start",
            MessageEvent::ContentBlockDelta { .. } => "content_block_delta",
            MessageEvent::ContentBlockStop { .. } => "content_block_stop",
            MessageEvent::MessageDelta { .. } => "message_delta",
            MessageEvent::MessageStop => "message_stop",
            MessageEvent::Ping => "ping",
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_named(out, self.name(), self);
    }
}

/// The kind of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    Call,
}

/// Writes the events of a streamed reply.
pub struct MessageEvents {
    /// The reply as `message_start` has it; `None` when that was written.
    head: Option<MessageReply>,
    /// The block that is open.
    open: Option<BlockKind>,
    /// The number of blocks that have begun.
    blocks: u32,
    /// The name of the last tool that was called.
    called: String,
    /// Whether an error was written, after which nothing follows.
    has_failed: bool,
}

impl MessageEvents {
    /// The writer of a reply that has begun.
    pub fn new(id: String, generation: &Generation) -> MessageEvents {
        let head = MessageReply::begun(id, generation.model_name.to_string(), generation.usage());
        MessageEvents { head: Some(head), open: None, blocks: 0, called: String::new(), has_failed: false }
    }

    /// Writes `message_start` before anything else.
    fn start(&mut self, out: &mut Vec<u8>) {
        if let Some(message) = self.head.take() {
            MessageEvent::MessageStart { message: &message }.write(out);
        }
    }

    /// The number of the block that is open.
    fn index(&self) -> u32 {
        self.blocks.saturating_sub(1)
    }

    fn open(&mut self, kind: BlockKind, content_block: OutputBlock, out: &mut Vec<u8>) {
        self.close(out);
        self.open = Some(kind);
        self.blocks += 1;
        MessageEvent::ContentBlockStart { index: self.index(), content_block }.write(out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let index = self.index();
        if self.open == Some(BlockKind::Thinking) {
            self.delta(BlockDelta::SignatureDelta { signature: "" }, out);
        }
        if self.open.take().is_some() {
            MessageEvent::ContentBlockStop { index }.write(out);
        }
    }

    fn delta(&self, delta: BlockDelta<'_>, out: &mut Vec<u8>) {
        MessageEvent::ContentBlockDelta { index: self.index(), delta }.write(out);
    }

    fn part(&mut self, part: &ReplyPart, is_cut: bool, out: &mut Vec<u8>) {
        match part {
            ReplyPart::Content(text) => {
                if self.open != Some(BlockKind::Text) {
                    self.open(BlockKind::Text, OutputBlock::Text { text: String::new() }, out);
                }
                self.delta(BlockDelta::TextDelta { text }, out);
            }
            ReplyPart::Thinking(thinking) => {
                if self.open != Some(BlockKind::Thinking) {
                    let block = OutputBlock::Thinking { thinking: String::new(), signature: "" };
                    self.open(BlockKind::Thinking, block, out);
                }
                self.delta(BlockDelta::ThinkingDelta { thinking }, out);
            }
            ReplyPart::CallBegin { id, name } => {
                self.called.clone_from(name);
                let (id, name, input) = (id.clone(), name.clone(), Map::new());
                self.open(BlockKind::Call, OutputBlock::ToolUse { id, name, input }, out);
            }
            ReplyPart::Arguments(partial_json) => {
                self.delta(BlockDelta::InputJsonDelta { partial_json }, out);
            }
            ReplyPart::CallEnd { fault: Some(fault) } if !is_cut => {
                self.error(&ApiError::invalid_call(&self.called, fault), out);
            }
            ReplyPart::CallEnd { .. } => self.close(out),
            _ => {}
        }
    }

    fn parts(&mut self, parts: &[ReplyPart], is_cut: bool, out: &mut Vec<u8>) {
        for part in parts {
            if !self.has_failed {
                self.part(part, is_cut, out);
            }
        }
    }
}

impl EventWriter for MessageEvents {
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>) {
        if let Some(head) = &mut self.head {
            // Now it is known how much of the prompt was cached. Tokens that are already there are
            // counted at the end.
            let usage = generation.usage();
            head.usage = TokenUsage { reply: 0, thinking: 0, ..usage }.into();
        }
        self.start(out);
        match event.kind {
            GenerationEventKind::PromptToken { .. } | GenerationEventKind::Prefilled => {}
            GenerationEventKind::Failed(error) => self.error(&error, out),
            GenerationEventKind::Token { parts, .. } => self.parts(&parts, false, out),
            GenerationEventKind::Finished { parts, reason, .. } => {
                self.parts(&parts, reason.may_cut_calls(), out);
                if self.has_failed {
                    return;
                }
                self.close(out);
                let (stop_reason, stop_sequence) = StopReason::of(reason);
                let (delta, usage) = (MessageEnd { stop_reason, stop_sequence }, generation.usage().into());
                MessageEvent::MessageDelta { delta, usage }.write(out);
            }
        }
    }

    fn end(&mut self, _: TokenUsage, out: &mut Vec<u8>) {
        if !self.has_failed {
            MessageEvent::MessageStop.write(out);
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.has_failed = true;
        write_named(out, "error", &error.body(Dialect::Anthropic));
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        if !self.has_failed {
            self.start(out);
            MessageEvent::Ping.write(out);
        }
    }
}
