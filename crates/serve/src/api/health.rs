//! `/health`: the process answers. `/ready`: requests are served without waiting for a model.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorBody};
use crate::state::{ServerPhase, ServerState};

/// The routes that answer while the server ends.
pub const PATHS: [&str; 2] = ["/health", "/ready"];

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    let [health_path, ready_path] = PATHS;
    Router::new().route(health_path, get(health)).route(ready_path, get(ready))
}

/// What the server says of itself.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatusBody {
    /// `ok` or `ready`.
    status: &'static str,
}

/// Whether the process answers.
#[utoipa::path(get, path = "/health", tag = "health", responses((status = 200, body = StatusBody)))]
pub async fn health() -> Json<StatusBody> {
    Json(StatusBody { status: "ok" })
}

/// Whether requests are served without waiting for a model, or for an engine that has ended by a fault.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "health",
    responses((status = 200, body = StatusBody), (status = 503, body = ErrorBody))
)]
pub async fn ready(State(state): State<Arc<ServerState>>) -> Response {
    match state.phase() {
        ServerPhase::Ready if !state.models.down().is_empty() => ApiError::engine_failed().into_response(),
        ServerPhase::Ready => Json(StatusBody { status: "ready" }).into_response(),
        ServerPhase::Leaving | ServerPhase::Draining => ApiError::shutting_down().into_response(),
        ServerPhase::Loading => {
            let message = "the models are being loaded; try again later";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message);
            ApiError { retry_after: Some(1), ..error }.into_response()
        }
    }
}
