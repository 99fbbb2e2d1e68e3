//! The messages of a chat: from OpenAI's form to the one that chat templates read.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::media_options::MediaOptions;
use crate::api::calls_so_far::CallsSoFar;
use crate::error::ApiError;
use crate::images::{content, image_of_url, text_part, video_part};
use crate::json_body::from_json_object;
use crate::thinking::set_thinking;
use crate::videos::frames_of_url;

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
    /// Whether the reply continues this message, the last one, of the assistant.
    pub prefix: Option<bool>,
    /// Without effect: what replies have, and clients send back.
    pub refusal: Option<Value>,
    /// Without effect.
    pub annotations: Option<Value>,
    /// Must be null.
    pub audio: Option<Value>,
    /// The call that the assistant made, for a client that calls tools functions.
    pub function_call: Option<CalledFunction>,
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
    /// As `tool`, for a client that calls tools functions.
    Function,
}

/// The text of a message, its images and videos.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of parts")]
pub enum MessageContent {
    /// The text.
    Text(String),
    /// Parts; without images and videos, they are joined by newlines.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct ContentPart {
    /// `text`, or `image_url` or `video_url` in a message of the user; other types are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: Option<String>,
    /// The image.
    pub image_url: Option<ImageUrl>,
    /// The video.
    pub video_url: Option<VideoUrl>,
}

/// A video of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct VideoUrl {
    /// Its frames, as vLLM takes them: `data:video/jpeg;base64,FRAME,FRAME,…`.
    pub url: String,
}

/// An image of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an object with url")]
pub enum ImageUrl {
    /// Its data URL with base64.
    Plain(String),
    /// Its data URL with base64, and more.
    Object(ImageUrlObject),
}

/// An image of a message, and how it is read.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct ImageUrlObject {
    /// The data URL.
    pub url: String,
    /// Without effect: the model decides the size.
    pub detail: Option<String>,
}

impl ImageUrl {
    /// The URL.
    pub fn url(&self) -> &str {
        match self {
            ImageUrl::Plain(url) | ImageUrl::Object(ImageUrlObject { url, .. }) => url,
        }
    }
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

/// The messages as chat templates read them: content is a text, arguments are an object. `media` says how videos are read.
///
/// # Errors
/// When there are none or too many, or one has what its role cannot have.
pub fn template_messages(
    messages: &[ChatMessage],
    media: Option<&MediaOptions>,
) -> Result<Vec<Value>, ApiError> {
    let count = messages.len();
    if count == 0 || count > MAX_MESSAGES {
        let message = format!("there are {count} messages; there must be 1 to {MAX_MESSAGES}");
        return Err(ApiError::invalid("messages", message));
    }
    let mut calls = CallsSoFar::default();
    let mut written = Vec::with_capacity(count);
    for (index, message) in messages.iter().enumerate() {
        let mut template = message.template_message(index, media)?;
        calls.follow(&format!("messages[{index}]"), &mut template)?;
        written.push(template);
    }
    Ok(written)
}

/// Whether the reply continues the last message.
///
/// # Errors
/// When that message cannot be continued, or the chat template is to begin another one.
pub fn continues_last(
    messages: &[ChatMessage],
    continues: Option<bool>,
    begins_reply: Option<bool>,
) -> Result<bool, ApiError> {
    const PARAM: &str = "continue_final_message";
    let wrong = |message: &str| Err(ApiError::invalid(PARAM, message));
    let is_prefix = |message: &ChatMessage| message.prefix == Some(true);
    let Some((last, before)) = messages.split_last() else { return Ok(false) };
    if let Some(index) = before.iter().position(is_prefix) {
        let param = format!("messages[{index}].prefix");
        let message = format!("{param} is true, but only the last message can be continued");
        return Err(ApiError::invalid(param, message));
    }
    match (continues, is_prefix(last)) {
        (Some(false), true) => {
            return wrong("continue_final_message is false, but the last message has prefix");
        }
        (Some(false) | None, false) => return Ok(false),
        (Some(true), _) | (None, true) => {}
    }
    if begins_reply == Some(true) {
        return wrong("add_generation_prompt and continue_final_message are both true; omit one of them");
    }
    if last.role != ChatRole::Assistant {
        return wrong("the last message is not of the assistant, so it cannot be continued");
    }
    if last.has_calls() || last.function_call.is_some() {
        return wrong("the last message has calls of tools, so it cannot be continued");
    }
    Ok(true)
}

impl ChatMessage {
    fn has_calls(&self) -> bool {
        self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }

    fn template_message(&self, index: usize, media: Option<&MediaOptions>) -> Result<Value, ApiError> {
        let wrong = |field: &str, message: &str| {
            Err(ApiError::invalid(
                format!("messages[{index}].{field}"),
                format!("messages[{index}].{message}"),
            ))
        };
        let has_calls = self.has_calls();
        if has_calls && self.role != ChatRole::Assistant {
            return wrong("tool_calls", "tool_calls is set, but only messages of the assistant have calls");
        }
        if self.audio.is_some() {
            return wrong("audio", "audio is not supported; omit it");
        }
        let function_call = self.function_call.as_ref();
        if function_call.is_some() && (has_calls || self.role != ChatRole::Assistant) {
            return wrong("function_call", "function_call is set beside tool_calls, or not of the assistant");
        }
        if self.role == ChatRole::Function && self.name.is_none() {
            return wrong("name", "name is missing; the result of a function names it");
        }
        let role = match self.role {
            // Templates know no developer, or treat it as the system.
            ChatRole::System | ChatRole::Developer => "system",
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
            ChatRole::Tool | ChatRole::Function => "tool",
        };
        let content = match &self.content {
            Some(content) => content.template_content(index, self.role, media)?,
            None if self.role == ChatRole::Assistant => "".into(),
            None => {
                return wrong("content", "content is missing; only messages of the assistant may have none");
            }
        };
        let mut fields = Map::new();
        fields.insert("role".to_owned(), role.into());
        fields.insert("content".to_owned(), content);
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
        } else if let Some(function) = function_call {
            let param = format!("messages[{index}].function_call");
            message["tool_calls"] = json!([function.template_call(&param)?]);
        }
        Ok(message)
    }
}

impl MessageContent {
    /// The content as chat templates read it: a text, or parts if there are images or videos.
    fn template_content(
        &self,
        index: usize,
        role: ChatRole,
        media: Option<&MediaOptions>,
    ) -> Result<Value, ApiError> {
        let parts = match self {
            MessageContent::Text(text) => return Ok(text.as_str().into()),
            MessageContent::Parts(parts) => parts,
        };
        let part = |(number, part): (usize, &ContentPart)| {
            part.template_part(&format!("messages[{index}].content[{number}]"), role, media)
        };
        Ok(content(parts.iter().enumerate().map(part).collect::<Result<_, _>>()?))
    }
}

impl ContentPart {
    /// The part as chat templates read it, which the parameter `param` holds.
    fn template_part(
        &self,
        param: &str,
        role: ChatRole,
        media: Option<&MediaOptions>,
    ) -> Result<Value, ApiError> {
        let of_user = |name: &str| match role {
            ChatRole::User => Ok(()),
            _ => {
                let message = format!("{param} is not of the user, whose messages alone have {name}s");
                Err(ApiError::invalid(param, message))
            }
        };
        match (self.kind.as_str(), &self.text, &self.image_url, &self.video_url) {
            ("text", Some(text), ..) => Ok(text_part(text)),
            ("image_url", _, Some(image), _) => {
                of_user("image")?;
                image_of_url(param, image.url())
            }
            ("video_url", _, _, Some(video)) => {
                of_user("video")?;
                let rate = MediaOptions::frames_per_second(media);
                Ok(video_part(param, frames_of_url(param, &video.url)?, rate))
            }
            (kind @ ("text" | "image_url" | "video_url"), ..) => {
                Err(ApiError::invalid(param, format!("{param} has no {kind}")))
            }
            (kind, ..) => {
                let kind: String = kind.chars().take(50).collect();
                let message = format!(
                    "{param} has the type {kind:?}; only text, image_url and video_url are supported"
                );
                Err(ApiError::unsupported(param, message))
            }
        }
    }
}

impl MessageCall {
    fn template_call(&self, index: usize, number: usize) -> Result<Value, ApiError> {
        let param = format!("messages[{index}].tool_calls[{number}]");
        if self.kind.as_deref().is_some_and(|kind| kind != "function") {
            let message = format!("{param} is not of the type function; only functions are supported");
            return Err(ApiError::unsupported(param, message));
        }
        let mut call = self.function.template_call(&format!("{param}.function"))?;
        if let Some(id) = &self.id {
            call["id"] = id.as_str().into();
        }
        Ok(call)
    }
}

impl CalledFunction {
    /// The call as chat templates read it.
    fn template_call(&self, param: &str) -> Result<Value, ApiError> {
        let text = self.arguments.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or("{}");
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(text) else {
            let param = format!("{param}.arguments");
            let message = format!("{param} is not the text of a JSON object");
            return Err(ApiError::invalid(param, message));
        };
        Ok(json!({"type": "function", "function": {"name": self.name, "arguments": arguments}}))
    }
}

from_json_object!(ChatMessage, ContentPart, ImageUrlObject, VideoUrl, MessageCall, CalledFunction);
