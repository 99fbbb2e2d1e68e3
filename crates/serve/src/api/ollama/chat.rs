//! `/api/chat`: the reply to a conversation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use girih::{Conversation, Prompt};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::messages::{OllamaMessage, template_messages};
use super::model_name::without_latest;
use super::options::{Think, WITHOUT_EFFECT, generation, grammar};
use super::reply::{OllamaReply, OllamaRoute, loaded_reply, reply};
use crate::api::reply_form::{check_tools, top_logprobs};
use crate::background::in_background;
use crate::caller::ApiCaller;
use crate::error::{ApiError, Dialect, OllamaErrorReplies, answer};
use crate::find_model::find_model;
use crate::generation::{GenerationRequest, begin};
use crate::json_body::{from_json_object, read_body};
use crate::keep_alive::{KeepAlive, KeepAliveBody};
use crate::ready_session::ready_session;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/api/chat", post(chat))
}

/// The body of `/api/chat`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct OllamaChatRequest {
    /// The model's name, with or without the tag `latest`.
    pub model: String,
    /// The conversation, at most 2048 messages. Without messages, the model is loaded.
    #[schema(max_items = 2048)]
    pub messages: Option<Vec<OllamaMessage>>,
    /// The tools that the model may call, at most 128.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<Value>>,
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
}

/// Replies to a conversation.
#[utoipa::path(
    post,
    path = "/api/chat",
    tag = "ollama",
    request_body = OllamaChatRequest,
    responses(
        (status = 200, content(
            (OllamaReply = "application/json"),
            (String = "application/x-ndjson"),
        )),
        OllamaErrorReplies,
    )
)]
pub async fn chat(State(state): State<Arc<ServerState>>, caller: ApiCaller, body: Bytes) -> Response {
    answer(Dialect::Ollama, replied(&state, &caller, body).await)
}

async fn replied(state: &Arc<ServerState>, caller: &ApiCaller, body: Bytes) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let body: OllamaChatRequest = read_body(body, WITHOUT_EFFECT).await?;
    if body.messages.as_ref().is_none_or(Vec::is_empty) {
        let keep = body.keep_alive()?;
        let name = load(state, &body.model, keep).await?;
        return Ok(loaded_reply(OllamaRoute::Chat, &name, keep));
    }
    let (is_stream, request) = (body.stream != Some(false), body.checked()?);
    drop(body);
    let generation = begin(state, caller, request).await?;
    reply(OllamaRoute::Chat, begun, generation, is_stream).await
}

/// Loads a model, or has it unloaded if it is to be kept for no time, and returns its name.
///
/// # Errors
/// When there is no such model, it is an encoder, or it cannot be loaded.
pub async fn load(
    state: &Arc<ServerState>,
    model: &str,
    keep: Option<KeepAlive>,
) -> Result<String, ApiError> {
    let model = find_model(state, Some(without_latest(model))).await?;
    state.models.check_is_no_encoder(&model.name)?;
    if let Some(keep) = keep {
        state.models.keep(&model.name, keep);
    }
    if keep == Some(KeepAlive::For(Duration::ZERO)) {
        let state = Arc::clone(state);
        // Ending an engine's thread takes time. A model in use is unloaded later.
        in_background(move || Ok(state.models.unload_idle())).await?;
    } else {
        ready_session(state, &model).await?;
    }
    Ok(model.id().to_owned())
}

impl OllamaChatRequest {
    fn keep_alive(&self) -> Result<Option<KeepAlive>, ApiError> {
        self.keep_alive.as_ref().map(|keep| keep.checked("keep_alive")).transpose()
    }

    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is outside its range, or contradicts another one.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        let tools = self.tools.clone().filter(|tools| !tools.is_empty());
        if let Some(tools) = &tools {
            check_tools(tools)?;
        }
        let grammar = grammar(self.format.as_ref(), tools.is_some())?;
        let messages = template_messages(self.messages.as_deref().unwrap_or_default())?;
        // The reply continues a last message of the assistant, as in Ollama.
        let continues_last = messages
            .last()
            .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
        let conversation = Conversation { messages, tools, continues_last, ..Conversation::new() };
        Ok(GenerationRequest {
            model: Some(without_latest(&self.model).to_owned()),
            prompts: vec![Prompt::Conversation(conversation)],
            grammar,
            thinking: self.think.as_ref().map(Think::thinking),
            logprobs: top_logprobs(self.logprobs, self.top_logprobs)?,
            keep_alive: self.keep_alive()?,
            ..generation(self.options.as_ref())?
        })
    }
}

from_json_object!(OllamaChatRequest);
