//! `/v1/models`: the models that are served.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use girih::Plan;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::anthropic::models::{ANTHROPIC_VERSION, AnthropicModel, AnthropicModels};
use crate::error::{ApiError, ErrorReplies};
use crate::find_model::{current_models, find_model};
use crate::models::ListedModel;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/models", get(list)).route("/v1/models/{*id}", get(one))
}

/// The served models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

/// A served model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The maximum number of tokens of a prompt and its reply, under vLLM's name.
    max_model_len: u32,
    /// The same under OpenRouter's name.
    context_length: u32,
    /// What it reads and writes, in OpenRouter's form.
    architecture: ModelModalities,
}

/// What a model reads and writes: `text`, `image`, `video`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelModalities {
    input_modalities: Vec<&'static str>,
    output_modalities: Vec<&'static str>,
}

impl ModelModalities {
    fn of(served: &ListedModel) -> ModelModalities {
        let input_modalities = match served.reads_images() {
            true if served.reads_videos() => vec!["text", "image", "video"],
            true => vec!["text", "image"],
            false => vec!["text"],
        };
        ModelModalities { input_modalities, output_modalities: vec!["text"] }
    }
}

impl ModelObject {
    fn of(state: &ServerState, served: &ListedModel) -> ModelObject {
        let (created, context) =
            (state.models.created(), Plan::context_of(&served.model, &served.run_options));
        ModelObject {
            id: served.id().to_owned(),
            object: "model",
            created,
            owned_by: "girih",
            max_model_len: context,
            context_length: context,
            architecture: ModelModalities::of(served),
        }
    }
}

/// The models that are served. A client of Anthropic's API, which sends `anthropic-version`, gets them in its form.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "openai",
    responses((status = 200, body = ModelList), ErrorReplies)
)]
pub async fn list(State(state): State<Arc<ServerState>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let models = current_models(&state).await?;
    if headers.contains_key(ANTHROPIC_VERSION) {
        return Ok(Json(AnthropicModels::of(&state, &models)).into_response());
    }
    let data = models.iter().map(|model| ModelObject::of(&state, model)).collect();
    Ok(Json(ModelList { object: "list", data }).into_response())
}

/// A model that is served.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "openai",
    params(("id" = String, Path, description = "The model's id.")),
    responses((status = 200, body = ModelObject), ErrorReplies)
)]
pub async fn one(
    State(state): State<Arc<ServerState>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let model = find_model(&state, Some(&id)).await?;
    if headers.contains_key(ANTHROPIC_VERSION) {
        return Ok(Json(AnthropicModel::of(&state, &model)).into_response());
    }
    Ok(Json(ModelObject::of(&state, &model)).into_response())
}
