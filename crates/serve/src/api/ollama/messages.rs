//! The messages of Ollama's API: from their form to the one that chat templates read.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::calls_so_far::CallsSoFar;
use crate::error::ApiError;
use crate::images::{content as template_content, image_part, text_part};
use crate::json_body::from_json_object;
use crate::thinking::set_thinking;

/// The maximum number of messages.
const MAX_MESSAGES: usize = 2048;

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct OllamaMessage {
    /// Whose message it is.
    pub role: OllamaRole,
    /// Its text.
    pub content: Option<String>,
    /// The assistant's thinking.
    pub thinking: Option<String>,
    /// Images in base64, before the text.
    pub images: Option<Vec<String>>,
    /// The calls of tools that the assistant made.
    pub tool_calls: Option<Vec<OllamaCall>>,
    /// The name of the tool whose result this message is.
    pub tool_name: Option<String>,
    /// The call that this message of a tool answers.
    pub tool_call_id: Option<String>,
}

/// Whose message it is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // Ollama's words
pub enum OllamaRole {
    System,
    User,
    Assistant,
    Tool,
}

/// A call of a tool that the assistant made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct OllamaCall {
    /// Its id.
    pub id: Option<String>,
    /// The tool and its arguments.
    pub function: OllamaFunction,
}

/// A tool and its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct OllamaFunction {
    /// The tool's name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// The messages as chat templates read them.
///
/// # Errors
/// When there are too many, or one has what its role cannot have.
pub fn template_messages(messages: &[OllamaMessage]) -> Result<Vec<Value>, ApiError> {
    let count = messages.len();
    if count > MAX_MESSAGES {
        let message = format!("there are {count} messages; the maximum is {MAX_MESSAGES}");
        return Err(ApiError::invalid("messages", message));
    }
    let mut calls = CallsSoFar::default();
    let mut written = Vec::with_capacity(count);
    for (index, message) in messages.iter().enumerate() {
        let mut template = message.template_message(index)?;
        calls.follow(&format!("messages[{index}]"), &mut template)?;
        written.push(template);
    }
    Ok(written)
}

/// The content of a template's message: `images`, which the parameter `param` holds, before a text.
pub fn content_with_images(param: &str, images: &[String], text: &str) -> Value {
    let images =
        images.iter().enumerate().map(|(number, image)| image_part(&format!("{param}[{number}]"), image));
    template_content(images.chain([text_part(text)]).collect())
}

impl OllamaMessage {
    fn template_message(&self, index: usize) -> Result<Value, ApiError> {
        let images = self.images.as_deref().unwrap_or_default();
        if !images.is_empty() && self.role != OllamaRole::User {
            let param = format!("messages[{index}].images");
            let message = format!("{param} is set, but only messages of the user have images");
            return Err(ApiError::invalid(param, message));
        }
        let text = self.content.as_deref().unwrap_or_default();
        let content = content_with_images(&format!("messages[{index}].images"), images, text);
        let role = match self.role {
            OllamaRole::System => "system",
            OllamaRole::User => "user",
            OllamaRole::Assistant => "assistant",
            OllamaRole::Tool => "tool",
        };
        let mut message = json!({"role": role, "content": content});
        if let Some(thinking) = self.thinking.as_deref().filter(|thinking| !thinking.is_empty()) {
            set_thinking(&mut message, thinking);
        }
        if let Some(name) = &self.tool_name {
            message["name"] = name.as_str().into();
        }
        if let Some(id) = &self.tool_call_id {
            message["tool_call_id"] = id.as_str().into();
        }
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        if calls.is_empty() {
            return Ok(message);
        }
        if self.role != OllamaRole::Assistant {
            let param = format!("messages[{index}].tool_calls");
            let sentence = format!("{param} is set, but only messages of the assistant have calls");
            return Err(ApiError::invalid(param, sentence));
        }
        message["tool_calls"] = calls.iter().map(OllamaCall::template_call).collect();
        Ok(message)
    }
}

impl OllamaCall {
    fn template_call(&self) -> Value {
        let OllamaFunction { name, arguments } = &self.function;
        let mut call = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
        if let Some(id) = &self.id {
            call["id"] = id.as_str().into();
        }
        call
    }
}

from_json_object!(OllamaMessage, OllamaCall, OllamaFunction);
