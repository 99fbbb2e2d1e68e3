//! Ollama's API: chats, texts, embeddings, what is served, and changes of that. Models are not made through it.

pub mod changes;
pub mod chat;
pub mod embed;
pub mod generate;
pub mod logprobs;
pub mod messages;
pub mod model_name;
pub mod models;
pub mod options;
pub mod reply;
pub mod timestamp;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;

use crate::error::{ApiError, Dialect};
use crate::state::ServerState;

/// The routes of Ollama's API that would make models, or send them elsewhere.
const REFUSED: [&str; 3] = ["/api/push", "/api/create", "/api/blobs/{digest}"];

/// The routes of Ollama's API.
pub fn routes() -> Router<Arc<ServerState>> {
    let routes = Router::new()
        .merge(chat::routes())
        .merge(generate::routes())
        .merge(embed::routes())
        .merge(models::routes())
        .merge(changes::routes());
    REFUSED.into_iter().fold(routes, |routes, path| routes.route(path, any(refuse)))
}

async fn refuse(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    let message =
        format!("{path} is not supported: `girih quantize` makes models, and none are sent elsewhere");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", message).response(Dialect::Ollama)
}
