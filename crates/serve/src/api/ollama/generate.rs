//! `/api/generate`: the reply to a text.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use girih::{Conversation, Prompt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::chat::load;
use super::messages::content_with_images;
use super::model_name::without_latest;
use super::options::{Think, WITHOUT_EFFECT, generation, grammar};
use super::reply::{OllamaReply, OllamaRoute, loaded_reply, reply};
use crate::api::reply_form::top_logprobs;
use crate::caller::ApiCaller;
use crate::error::{ApiError, Dialect, OllamaErrorReplies, answer};
use crate::generation::{GenerationRequest, begin};
use crate::json_body::{from_json_object, read_body};
use crate::keep_alive::KeepAliveBody;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/api/generate", post(generate))
}

/// The body of `/api/generate`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct OllamaGenerateRequest {
    /// The model's name, with or without the tag `latest`.
    pub model: String,
    /// The text. Without one, the model is loaded.
    pub prompt: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// Whether the text is continued as it is, without the chat template. Special tokens that it
    /// spells are text.
    pub raw: Option<bool>,
    /// Whether the reply is sent in pieces as it is made. Default true.
    pub stream: Option<bool>,
    /// How long the model stays loaded after the request: seconds, or a duration such as `5m`.
    pub keep_alive: Option<KeepAliveBody>,
    /// What the reply must be: `json`, or a JSON Schema.
    pub format: Option<Value>,
    /// Options of the samplers.
    #[schema(value_type = Option<super::options::OllamaOptions>)]
    pub options: Option<Map<String, Value>>,
    /// Whether the model thinks, or how much.
    pub think: Option<Think>,
    /// Whether tokens come with their log-probability.
    pub logprobs: Option<bool>,
    /// Of how many most likely tokens the log-probabilities are given, at most 20.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Images in base64, before the prompt; neither with `raw` nor with `suffix`.
    pub images: Option<Vec<String>>,
    /// The text that follows the reply, for models whose vocabulary has tokens for it.
    pub suffix: Option<String>,
    /// Must be empty.
    pub template: Option<String>,
    /// Must be empty.
    pub context: Option<Vec<u32>>,
}

/// Replies to a text.
#[utoipa::path(
    post,
    path = "/api/generate",
    tag = "ollama",
    request_body = OllamaGenerateRequest,
    responses(
        (status = 200, content(
            (OllamaReply = "application/json"),
            (String = "application/x-ndjson"),
        )),
        OllamaErrorReplies,
    )
)]
pub async fn generate(State(state): State<Arc<ServerState>>, caller: ApiCaller, body: Bytes) -> Response {
    answer(Dialect::Ollama, replied(&state, &caller, body).await)
}

async fn replied(state: &Arc<ServerState>, caller: &ApiCaller, body: Bytes) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let body: OllamaGenerateRequest = read_body(body, WITHOUT_EFFECT).await?;
    let request = body.checked()?;
    if body.prompt.as_deref().unwrap_or_default().is_empty() {
        if request.suffix.is_some() {
            let message = "suffix needs a prompt, and there is none; give the text before the gap";
            return Err(ApiError::invalid("suffix", message));
        }
        let keep = request.keep_alive;
        let name = load(state, &body.model, keep).await?;
        return Ok(loaded_reply(OllamaRoute::Generate, &name, keep));
    }
    let is_stream = body.stream != Some(false);
    drop(body);
    let generation = begin(state, caller, request).await?;
    reply(OllamaRoute::Generate, begun, generation, is_stream).await
}

impl OllamaGenerateRequest {
    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is not supported, is outside its range, or contradicts another one.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        self.check_unsupported()?;
        Ok(GenerationRequest {
            model: Some(without_latest(&self.model).to_owned()),
            prompts: vec![self.prompt()?],
            suffix: self.suffix.clone().filter(|text| !text.is_empty()),
            grammar: grammar(self.format.as_ref(), false)?,
            thinking: self.think.as_ref().map(Think::thinking),
            logprobs: top_logprobs(self.logprobs, self.top_logprobs)?,
            keep_alive: self.keep_alive.as_ref().map(|keep| keep.checked("keep_alive")).transpose()?,
            ..generation(self.options.as_ref())?
        })
    }

    fn check_unsupported(&self) -> Result<(), ApiError> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let has_context = self.context.as_ref().is_some_and(|tokens| !tokens.is_empty());
        let unsupported = [
            ("template", is_set(&self.template), "set raw, and send the whole prompt"),
            ("context", has_context, "send the conversation to /api/chat"),
        ];
        match unsupported.into_iter().find(|(_, is_set, _)| *is_set) {
            None => Ok(()),
            Some((param, _, advice)) => {
                Err(ApiError::unsupported(param, format!("{param} is not supported; {advice}")))
            }
        }
    }

    fn prompt(&self) -> Result<Prompt, ApiError> {
        let (text, images) =
            (self.prompt.clone().unwrap_or_default(), self.images.as_deref().unwrap_or_default());
        // No chat template stands between a text and its suffix.
        let is_raw = self.raw.unwrap_or(false) || self.suffix.as_ref().is_some_and(|text| !text.is_empty());
        match (is_raw, &self.system) {
            (true, _) if !images.is_empty() => {
                let message = "images is set, but raw or suffix leaves out the chat template that places them; omit one";
                Err(ApiError::invalid("images", message))
            }
            (true, None) => Ok(Prompt::Text(text)),
            (true, Some(_)) => {
                let message =
                    "system is set, but raw or suffix leaves out the chat template that writes it; omit one";
                Err(ApiError::invalid("system", message))
            }
            (false, system) => {
                let conversation = Conversation::new();
                let mut conversation = match system {
                    Some(system) => conversation.system(system),
                    None => conversation,
                };
                let content = content_with_images("images", images, &text);
                conversation.messages.push(json!({"role": "user", "content": content}));
                Ok(Prompt::Conversation(conversation))
            }
        }
    }
}

from_json_object!(OllamaGenerateRequest);
