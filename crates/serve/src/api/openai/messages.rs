//! The messages of a chat: from OpenAI's form to the one that chat templates read.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json_body::from_json_object;
use crate::thinking::set_thinking;

/// The maximum number of messages.
const MAX_MESSAGES: usize = 2048;

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[allow(dead_code)] // what a client sends back of a reply is read and dropped
pub struct ChatMessage {
    /// Whose message it is.
    pub role: ChatRole,
    /// Its text.
    pub content: Option<MessageContent>,
    /// The name of who speaks, or of the tool.
    pub name: Option<String>,
    /// The calls of tools that the assistant made.
    pub tool_calls: Option<Vec<MessageCall>>,
    /// The call that this message of a tool answers.
    pub tool_call_id: Option<String>,
    /// The assistant's thinking.
    pub reasoning_content: Option<String>,
    /// As `reasoning_content`, under vLLM's newer name.
    pub reasoning: Option<String>,
    /// Without effect: what replies have, and clients send back.
    pub refusal: Option<Value>,
    /// Without effect.
    pub annotations: Option<Value>,
    /// Must be null.
    pub audio: Option<Value>,
    /// Must be null; replaced by `tool_calls`.
    pub function_call: Option<Value>,
}

/// Whose message it is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's words
pub enum ChatRole {
    System,
    /// As `system`.
    Developer,
    User,
    Assistant,
    Tool,
}

/// The text of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of parts")]
pub enum MessageContent {
    /// The text.
    Text(String),
    /// Parts, which are joined by newlines.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct ContentPart {
    /// `text`; other types are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: Option<String>,
}

/// A call of a tool that the assistant made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct MessageCall {
    /// Its id, which the tool's message names.
    pub id: Option<String>,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The tool and its arguments.
    pub function: CalledFunction,
}

/// A tool and its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct CalledFunction {
    /// The tool's name.
    pub name: String,
    /// The arguments: a JSON object as text.
    pub arguments: Option<String>,
}

/// The messages as chat templates read them: content is a text, arguments are an object.
///
/// # Errors
/// When there are none or too many, or one has what its role cannot have.
pub fn template_messages(messages: &[ChatMessage]) -> Result<Vec<Value>, ApiError> {
    let count = messages.len();
    if count == 0 || count > MAX_MESSAGES {
        let message = format!("there are {count} messages; there must be 1 to {MAX_MESSAGES}");
        return Err(ApiError::invalid("messages", message));
    }
    messages.iter().enumerate().map(|(index, message)| message.template_message(index)).collect()
}

impl ChatMessage {
    fn template_message(&self, index: usize) -> Result<Value, ApiError> {
        let wrong = |field: &str, message: &str| {
            Err(ApiError::invalid(
                format!("messages[{index}].{field}"),
                format!("messages[{index}].{message}"),
            ))
        };
        let has_calls = self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        if has_calls && self.role != ChatRole::Assistant {
            return wrong("tool_calls", "tool_calls is set, but only messages of the assistant have calls");
        }
        if self.audio.is_some() {
            return wrong("audio", "audio is not supported; omit it");
        }
        if self.function_call.is_some() {
            return wrong("function_call", "function_call is not supported; send tool_calls");
        }
        let role = match self.role {
            // Templates know no developer, or treat it as the system.
            ChatRole::System | ChatRole::Developer => "system",
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
            ChatRole::Tool => "tool",
        };
        let content = match &self.content {
            Some(content) => content.text(index)?,
            None if self.role == ChatRole::Assistant => String::new(),
            None => {
                return wrong("content", "content is missing; only messages of the assistant may have none");
            }
        };
        let mut fields = Map::new();
        fields.insert("role".to_owned(), role.into());
        fields.insert("content".to_owned(), content.into());
        let names = [("name", &self.name), ("tool_call_id", &self.tool_call_id)];
        for (key, value) in names {
            fields.extend(value.as_deref().map(|value| (key.to_owned(), value.into())));
        }
        let mut message = Value::Object(fields);
        if let Some(thinking) = self.reasoning_content.as_ref().or(self.reasoning.as_ref()) {
            set_thinking(&mut message, thinking);
        }
        if has_calls {
            let calls = self.tool_calls.iter().flatten().enumerate();
            let calls: Result<Vec<Value>, ApiError> =
                calls.map(|(number, call)| call.template_call(index, number)).collect();
            message["tool_calls"] = Value::Array(calls?);
        }
        Ok(message)
    }
}

impl MessageContent {
    fn text(&self, index: usize) -> Result<String, ApiError> {
        let parts = match self {
            MessageContent::Text(text) => return Ok(text.clone()),
            MessageContent::Parts(parts) => parts,
        };
        let mut texts = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let param = format!("messages[{index}].content[{number}]");
            match (part.kind.as_str(), &part.text) {
                ("text", Some(text)) => texts.push(text.as_str()),
                ("text", None) => return Err(ApiError::invalid(&param, format!("{param} has no text"))),
                (kind, _) => {
                    let kind: String = kind.chars().take(50).collect();
                    let message = format!("{param} has the type {kind:?}; only text is supported");
                    return Err(ApiError::unsupported(param, message));
                }
            }
        }
        Ok(texts.join("\n"))
    }
}

impl MessageCall {
    fn template_call(&self, index: usize, number: usize) -> Result<Value, ApiError> {
        let param = format!("messages[{index}].tool_calls[{number}]");
        if self.kind.as_deref().is_some_and(|kind| kind != "function") {
            let message = format!("{param} is not of the type function; only functions are supported");
            return Err(ApiError::unsupported(param, message));
        }
        let text = self.function.arguments.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or("{}");
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(text) else {
            let message = format!("{param}.function.arguments is not the text of a JSON object");
            return Err(ApiError::invalid(param, message));
        };
        let function = json!({"name": self.function.name, "arguments": arguments});
        let mut call = json!({"type": "function", "function": function});
        if let Some(id) = &self.id {
            call["id"] = id.as_str().into();
        }
        Ok(call)
    }
}

from_json_object!(ChatMessage, ContentPart, MessageCall, CalledFunction);
