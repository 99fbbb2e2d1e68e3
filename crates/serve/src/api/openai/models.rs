//! `/v1/models`: the models that are served.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorReplies};
use crate::options::ServedModel;
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
}

impl ModelObject {
    fn of(state: &ServerState, model: &ServedModel) -> ModelObject {
        let created = state.models.created();
        ModelObject { id: model.name.clone(), object: "model", created, owned_by: "girih" }
    }
}

/// The models that are served.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "openai",
    responses((status = 200, body = ModelList), ErrorReplies)
)]
pub async fn list(State(state): State<Arc<ServerState>>) -> Json<ModelList> {
    let data = state.models.list().iter().map(|model| ModelObject::of(&state, model)).collect();
    Json(ModelList { object: "list", data })
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
) -> Result<Json<ModelObject>, ApiError> {
    let model = state.models.find(Some(&id))?;
    Ok(Json(ModelObject::of(&state, model)))
}
