//! `/health`: the process answers. `/ready`: requests are served without waiting for a model.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::error::ApiError;
use crate::state::{ServerPhase, ServerState};

/// The routes that answer while the server ends.
pub const PATHS: [&str; 2] = ["/health", "/ready"];

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    let [health_path, ready_path] = PATHS;
    Router::new().route(health_path, get(health)).route(ready_path, get(ready))
}

async fn health() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

async fn ready(State(state): State<Arc<ServerState>>) -> Response {
    match state.phase() {
        ServerPhase::Ready => Json(json!({"status": "ready"})).into_response(),
        ServerPhase::Draining => ApiError::shutting_down().into_response(),
        ServerPhase::Loading => {
            let message = "the models are being loaded; try again later";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message);
            ApiError { retry_after: Some(1), ..error }.into_response()
        }
    }
}
