//! The messages of Anthropic's API: from their form to the one that chat templates read.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::call_input::CallInput;
use crate::error::ApiError;
use crate::images::{content as template_content, image_of_url, image_part, text_part};
use crate::json_body::{from_json_object, read_value};
use crate::parameters::ParameterNotes;
use crate::thinking::set_thinking;

/// The maximum number of messages.
const MAX_MESSAGES: usize = 2048;

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct InputMessage {
    /// Whose message it is.
    pub role: InputRole,
    /// Its text, or its blocks.
    pub content: InputContent,
}

/// Whose message it is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // Anthropic's words
pub enum InputRole {
    User,
    Assistant,
    System,
}

/// A text, or blocks. Blocks are read one by one, so that an error names the block.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of blocks")]
pub enum InputContent {
    /// The text.
    Text(String),
    /// The blocks.
    #[schema(value_type = Vec<InputBlock>)]
    Blocks(Vec<Value>),
}

/// A text, or blocks of text, which are joined by newlines.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of blocks")]
pub enum AnthropicText {
    /// The text.
    Text(String),
    /// The blocks.
    #[schema(value_type = Vec<TextBlock>)]
    Blocks(Vec<Value>),
}

/// A block of text, as [`InputBlock`] has it: a type of its own, because descriptions of types cannot
/// contain themselves.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Anthropic's words
pub enum TextBlock {
    Text { text: String, cache_control: Option<Value>, citations: Option<Value> },
}

/// A block of a message. `cache_control`, `citations`, `caller`, `signature` and `is_error` have no
/// effect.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Anthropic's words
pub enum InputBlock {
    Text {
        text: String,
        cache_control: Option<Value>,
        citations: Option<Value>,
    },
    /// An image, in a message of the user.
    Image {
        source: ImageSource,
        cache_control: Option<Value>,
    },
    /// Thinking of the assistant.
    Thinking {
        thinking: String,
        signature: Option<String>,
    },
    /// A call of a tool by the assistant.
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = CallInput)]
        input: Map<String, Value>,
        cache_control: Option<Value>,
        caller: Option<Value>,
    },
    /// What a tool returned, in a message of the user.
    ToolResult {
        tool_use_id: String,
        content: Option<AnthropicText>,
        is_error: Option<bool>,
        cache_control: Option<Value>,
    },
}

/// Where an image comes from. Its format is told by its bytes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Anthropic's words
pub enum ImageSource {
    Base64 {
        media_type: Option<String>,
        data: String,
    },
    /// Refused, unless the server fetches images.
    Url {
        url: String,
    },
}

/// The messages as chat templates read them. The results of tools become messages of the role
/// `tool`.
///
/// # Errors
/// When there are none or too many, the last one is of the assistant and has calls, or one has a block that its
/// role cannot have.
pub fn template_messages(messages: &[InputMessage]) -> Result<Vec<Value>, ApiError> {
    let count = messages.len();
    if count == 0 || count > MAX_MESSAGES {
        let message = format!("there are {count} messages; there must be 1 to {MAX_MESSAGES}");
        return Err(ApiError::invalid("messages", message));
    }
    let mut writer = TemplateWriter::default();
    for (index, message) in messages.iter().enumerate() {
        writer.add(&format!("messages[{index}]"), message)?;
    }
    if writer.messages.last().is_some_and(|last| last.get("tool_calls").is_some()) {
        let message = "the last message has tool_use blocks without a tool_result; send the results";
        return Err(ApiError::invalid(format!("messages[{}]", count - 1), message));
    }
    Ok(writer.messages)
}

/// Whether the reply continues the last message: one of the assistant.
pub fn continues_last(messages: &[InputMessage]) -> bool {
    messages.last().is_some_and(|last| last.role == InputRole::Assistant)
}

impl AnthropicText {
    /// The text of a system prompt, without the lines of agents' headers in its first block; `None` if nothing
    /// is left.
    ///
    /// # Errors
    /// When a block is not text.
    pub fn system_text(&self, notes: &ParameterNotes) -> Result<Option<String>, ApiError> {
        const PARAM: &str = "system";
        let blocks = match self {
            AnthropicText::Text(text) => return Ok(notes.without_header_lines(text)),
            AnthropicText::Blocks(blocks) => blocks,
        };
        let mut texts = texts(PARAM, blocks)?;
        if let Some(first) = texts.first_mut() {
            match notes.without_header_lines(first) {
                Some(kept) => *first = kept,
                None => drop(texts.remove(0)),
            }
        }
        Ok((!texts.is_empty() || blocks.is_empty()).then(|| texts.join("\n")))
    }

    /// The text.
    ///
    /// # Errors
    /// When a block is not text.
    pub fn text(&self, param: &str) -> Result<String, ApiError> {
        match self {
            AnthropicText::Text(text) => Ok(text.clone()),
            AnthropicText::Blocks(blocks) => joined(param, blocks),
        }
    }
}

/// The texts of blocks, joined by newlines.
fn joined(param: &str, blocks: &[Value]) -> Result<String, ApiError> {
    Ok(texts(param, blocks)?.join("\n"))
}

/// The texts of blocks.
fn texts(param: &str, blocks: &[Value]) -> Result<Vec<String>, ApiError> {
    let text = |(number, block): (usize, &Value)| {
        let param = format!("{param}[{number}]");
        match read_block(&param, block)? {
            InputBlock::Text { text, .. } => Ok(text),
            _ => Err(ApiError::invalid(&param, format!("{param} must be of the type text"))),
        }
    };
    blocks.iter().enumerate().map(text).collect()
}

fn read_block(param: &str, block: &Value) -> Result<InputBlock, ApiError> {
    const KNOWN: [&str; 5] = ["text", "image", "thinking", "tool_use", "tool_result"];
    if let Some(kind) = block.get("type").and_then(Value::as_str).filter(|kind| !KNOWN.contains(kind)) {
        let kind: String = kind.chars().take(50).collect();
        let message =
            format!("{param} has the type {kind:?}, which is not supported; known are {}", KNOWN.join(", "));
        return Err(ApiError::unsupported(param, message));
    }
    read_value(param, block)
}

/// Writes messages as chat templates read them.
#[derive(Default)]
struct TemplateWriter {
    messages: Vec<Value>,
    /// The names of tools that were called, by the calls' ids.
    called: HashMap<String, String>,
}

/// The blocks of a message of the assistant.
#[derive(Default)]
struct AssistantBlocks {
    text: String,
    thinking: String,
    calls: Vec<Value>,
}

impl TemplateWriter {
    fn add(&mut self, param: &str, message: &InputMessage) -> Result<(), ApiError> {
        let content = format!("{param}.content");
        match (message.role, &message.content) {
            (InputRole::System, InputContent::Text(text)) => self.push("system", text.clone()),
            (InputRole::System, InputContent::Blocks(blocks)) => {
                self.push("system", joined(&content, blocks)?);
            }
            (InputRole::User, InputContent::Text(text)) => self.push("user", text.clone()),
            (InputRole::User, InputContent::Blocks(blocks)) => self.add_user(&content, blocks)?,
            (InputRole::Assistant, InputContent::Text(text)) => self.push("assistant", text.clone()),
            (InputRole::Assistant, InputContent::Blocks(blocks)) => self.add_assistant(&content, blocks)?,
        }
        Ok(())
    }

    fn push(&mut self, role: &str, content: impl Into<Value>) {
        let content = content.into();
        self.messages.push(json!({"role": role, "content": content}));
    }

    fn add_user(&mut self, param: &str, blocks: &[Value]) -> Result<(), ApiError> {
        let mut parts: Vec<Value> = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let param = format!("{param}[{number}]");
            match read_block(&param, block)? {
                InputBlock::Text { text, .. } => parts.push(text_part(&text)),
                InputBlock::Image { source: ImageSource::Base64 { data, .. }, .. } => {
                    parts.push(image_part(&param, &data));
                }
                InputBlock::Image { source: ImageSource::Url { url }, .. } => {
                    parts.push(image_of_url(&param, &url)?);
                }
                InputBlock::ToolResult { tool_use_id, content, .. } => {
                    if !parts.is_empty() {
                        self.push("user", template_content(std::mem::take(&mut parts)));
                    }
                    let content = content.map(|content| content.text(&format!("{param}.content")));
                    self.add_result(&param, tool_use_id, content.transpose()?.unwrap_or_default())?;
                }
                _ => return Err(misplaced(&param, "the assistant")),
            }
        }
        if !parts.is_empty() {
            self.push("user", template_content(parts));
        } else if blocks.is_empty() {
            return Err(ApiError::invalid(param, format!("{param} has no blocks; give at least one")));
        }
        Ok(())
    }

    fn add_result(&mut self, param: &str, id: String, content: String) -> Result<(), ApiError> {
        let Some(name) = self.called.get(&id) else {
            let message = format!("{param}.tool_use_id names no tool_use block of a message before it");
            return Err(ApiError::invalid(param, message));
        };
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": content}));
        Ok(())
    }

    fn add_assistant(&mut self, param: &str, blocks: &[Value]) -> Result<(), ApiError> {
        let mut all = AssistantBlocks::default();
        for (number, block) in blocks.iter().enumerate() {
            let param = format!("{param}[{number}]");
            match read_block(&param, block)? {
                // Without a line end between them: they are pieces of one reply.
                InputBlock::Text { text, .. } => all.text += &text,
                InputBlock::Thinking { thinking, .. } => all.thinking += &thinking,
                InputBlock::ToolUse { id, name, input, .. } => {
                    let function = json!({"name": name, "arguments": input});
                    all.calls.push(json!({"type": "function", "id": id, "function": function}));
                    self.called.insert(id, name);
                }
                InputBlock::Image { .. } | InputBlock::ToolResult { .. } => {
                    return Err(misplaced(&param, "the user"));
                }
            }
        }
        let mut message = json!({"role": "assistant", "content": all.text});
        if !all.thinking.is_empty() {
            set_thinking(&mut message, &all.thinking);
        }
        if !all.calls.is_empty() {
            message["tool_calls"] = Value::Array(all.calls);
        }
        self.messages.push(message);
        Ok(())
    }
}

fn misplaced(param: &str, role: &str) -> ApiError {
    ApiError::invalid(param, format!("{param} is of a type that only messages of {role} have"))
}

from_json_object!(InputMessage, TextBlock, InputBlock, ImageSource);

#[cfg(test)]
mod tests {
    use super::*;

    fn written(messages: Value) -> Result<Value, String> {
        let messages: Vec<InputMessage> = serde_json::from_value(messages).unwrap();
        template_messages(&messages).map(Value::Array).map_err(|error| error.message)
    }

    #[test]
    fn results_of_tools_become_messages_of_their_own() {
        let call = json!({"type": "tool_use", "id": "c1", "name": "look", "input": {"up": true}});
        let result = json!({"type": "tool_result", "tool_use_id": "c1", "is_error": false,
            "content": [{"type": "text", "text": "day"}, {"type": "text", "text": "light"}]});
        let thinking = json!({"type": "thinking", "thinking": "hm", "signature": ""});
        let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
        let messages = json!([
            {"role": "user", "content": "Is it day?"},
            {"role": "assistant", "content": [thinking, text("I "), text("look."), call]},
            {"role": "user", "content": [result, text("So?"), text("Say.")]},
        ]);
        let expected = json!([
            {"role": "user", "content": "Is it day?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "thinking": "hm",
                "tool_calls": [{"type": "function", "id": "c1",
                    "function": {"name": "look", "arguments": {"up": true}}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "day\nlight"},
            {"role": "user", "content": "So?\nSay."},
        ]);
        assert_eq!(written(messages), Ok(expected));
    }

    #[test]
    fn blocks_in_the_wrong_place_are_refused_by_name() {
        let user = |block: Value| written(json!([{"role": "user", "content": [block]}])).unwrap_err();
        let document = user(json!({"type": "document", "source": {}}));
        assert!(document.starts_with("messages[0].content[0] has the type \"document\""), "{document}");
        let url = user(json!({"type": "image", "source": {"type": "url", "url": "ftp://example.org/a.png"}}));
        assert!(url.starts_with("messages[0].content[0] is a URL of an unknown kind"), "{url}");
        let unknown = user(json!({"type": "tool_result", "tool_use_id": "c9"}));
        assert!(unknown.contains("names no tool_use block"), "{unknown}");
        let misplaced = user(json!({"type": "thinking", "thinking": "hm"}));
        assert!(misplaced.contains("only messages of the assistant"), "{misplaced}");
        let more = user(json!({"type": "text", "text": "a", "more": 1}));
        assert!(more.contains("the field \"more\" is not known"), "{more}");
        let call = json!([{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]);
        let unanswered = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": call}]);
        assert!(written(unanswered).unwrap_err().contains("without a tool_result"));
        assert!(written(json!([])).unwrap_err().contains("0 messages"));
        assert!(written(json!([{"role": "user", "content": []}])).unwrap_err().contains("no blocks"));
    }
}
