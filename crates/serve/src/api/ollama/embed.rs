//! `/api/embed` and its predecessor `/api/embeddings`: one vector for each text, by an encoder.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::model_name::without_latest;
use super::options::{EMBED_WITHOUT_EFFECT, OPTIONS_WITHOUT_EFFECT};
use crate::api::embedding::{EmbeddingInput, Embeddings, LongInput, embed};
use crate::api::one_or_many::OneOrMany;
use crate::caller::ApiCaller;
use crate::error::{ApiError, Dialect, OllamaErrorReplies, answer};
use crate::json_body::{from_json_object, read_body};
use crate::parameters::ParameterNotes;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/api/embed", post(create)).route("/api/embeddings", post(create_one))
}

/// The body of `/api/embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct EmbedRequest {
    /// The encoder's name, with or without the tag `latest`.
    pub model: String,
    /// A text, or at most 64.
    pub input: OneOrMany,
    /// Whether the end of a text with more tokens than the model takes is cut. Default true; else
    /// such a text is refused.
    pub truncate: Option<bool>,
    /// The size of the vectors; only the model's own is supported.
    pub dimensions: Option<usize>,
    /// Options of the server, which have no effect.
    pub options: Option<Map<String, Value>>,
}

/// The body of `/api/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct EmbeddingsOfOneRequest {
    /// The encoder's name, with or without the tag `latest`.
    pub model: String,
    /// The text.
    pub prompt: String,
    /// Options of the server, which have no effect.
    pub options: Option<Map<String, Value>>,
}

/// The reply of `/api/embed`.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbedReply {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds.
    total_duration: u64,
    /// In nanoseconds; 0, because encoders are loaded at the start.
    load_duration: u64,
    /// The number of tokens of all texts.
    prompt_eval_count: usize,
}

/// The reply of `/api/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingReply {
    embedding: Vec<f32>,
}

/// Embeds texts.
#[utoipa::path(
    post,
    path = "/api/embed",
    tag = "ollama",
    request_body = EmbedRequest,
    responses((status = 200, body = EmbedReply), OllamaErrorReplies)
)]
pub async fn create(State(state): State<Arc<ServerState>>, caller: ApiCaller, body: Bytes) -> Response {
    answer(Dialect::Ollama, embedded(&state, &caller, body).await)
}

async fn embedded(state: &Arc<ServerState>, caller: &ApiCaller, body: Bytes) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let EmbedRequest { model, input, truncate, dimensions, options, .. } =
        read_body(body, EMBED_WITHOUT_EFFECT).await?;
    check_options(options.as_ref())?;
    let inputs = input.into_texts().into_iter().map(EmbeddingInput::Text).collect();
    let long = if truncate == Some(false) { LongInput::Refuse } else { LongInput::Cut };
    let embeddings = embed(state, caller, without_latest(&model), inputs, (long, dimensions)).await?;
    let Embeddings { model, vectors, tokens } = embeddings;
    let reply = EmbedReply {
        model,
        embeddings: vectors,
        total_duration: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count: tokens,
    };
    Ok(Json(reply).into_response())
}

/// Embeds a text.
#[utoipa::path(
    post,
    path = "/api/embeddings",
    tag = "ollama",
    request_body = EmbeddingsOfOneRequest,
    responses((status = 200, body = EmbeddingReply), OllamaErrorReplies)
)]
pub async fn create_one(State(state): State<Arc<ServerState>>, caller: ApiCaller, body: Bytes) -> Response {
    answer(Dialect::Ollama, embedded_one(&state, &caller, body).await)
}

async fn embedded_one(
    state: &Arc<ServerState>,
    caller: &ApiCaller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let EmbeddingsOfOneRequest { model, prompt, options, .. } = read_body(body, EMBED_WITHOUT_EFFECT).await?;
    check_options(options.as_ref())?;
    let inputs = vec![EmbeddingInput::Text(prompt)];
    let embeddings = embed(state, caller, without_latest(&model), inputs, (LongInput::Cut, None)).await?;
    let embedding = embeddings.vectors.into_iter().next().unwrap_or_default();
    Ok(Json(EmbeddingReply { embedding }).into_response())
}

fn check_options(options: Option<&Map<String, Value>>) -> Result<(), ApiError> {
    let notes = ParameterNotes::current();
    for (name, value) in options.into_iter().flatten() {
        match OPTIONS_WITHOUT_EFFECT.iter().find(|option| option.name == name) {
            Some(option) => option.accept(&format!("options.{name}"), value, &notes)?,
            None => return Err(no_option(name)),
        }
    }
    Ok(())
}

fn no_option(name: &str) -> ApiError {
    let name: String = name.chars().take(50).collect();
    let message = format!("options.{name} has no effect on embeddings; omit it");
    ApiError::unsupported(format!("options.{name}"), message)
}

from_json_object!(EmbedRequest, EmbeddingsOfOneRequest);
