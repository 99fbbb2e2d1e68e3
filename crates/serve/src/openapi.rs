//! `/openapi.json`: the description of the routes, from the types that they read and write.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::api::{anthropic, health, metrics, ollama, openai};
use crate::error::{AnthropicErrorBody, OllamaErrorBody};
use crate::state::ServerState;

/// The routes that the description lists.
#[derive(OpenApi)]
#[openapi(
    info(title = "girih", description = "Language models on your own machine."),
    paths(
        health::health,
        health::ready,
        metrics::metrics,
        openai::chat::complete,
        openai::completions::complete,
        openai::models::list,
        openai::models::one,
        openai::tokenize::tokenize,
        openai::tokenize::detokenize,
        openai::embeddings::create,
        openai::responses::create,
        anthropic::create,
        anthropic::count,
        ollama::chat::chat,
        ollama::generate::generate,
        ollama::embed::create,
        ollama::embed::create_one,
        ollama::models::tags,
        ollama::models::processes,
        ollama::models::show,
        ollama::models::version,
    ),
    components(schemas(AnthropicErrorBody, OllamaErrorBody))
)]
struct Description;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/openapi.json", get(description))
}

async fn description() -> Json<Document> {
    Json(Description::openapi())
}
