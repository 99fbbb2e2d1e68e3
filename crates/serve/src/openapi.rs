//! `/openapi.json`: the description of the routes, from the types that they read and write.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use utoipa::OpenApi;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{ObjectBuilder, OpenApi as Document, RefOr, Schema};

use crate::api::{anthropic, girih, health, metrics, ollama, openai};
use crate::error::{AnthropicErrorBody, OllamaErrorBody};
use crate::parameters::ParameterWithoutEffect;
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
        openai::infill::fill,
        openai::models::list,
        openai::models::one,
        openai::render::render_completion,
        openai::render::render_chat,
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
        ollama::changes::pull,
        ollama::changes::remove,
        ollama::changes::copy,
        ollama::models::tags,
        ollama::models::processes,
        ollama::models::show,
        ollama::models::version,
        girih::cache::reports,
        girih::adapters::add,
        girih::adapters::remove,
    ),
    components(schemas(AnthropicErrorBody, OllamaErrorBody))
)]
struct Description;

/// The bodies of requests, and their parameters without effect.
const TABLES: [(&str, &[ParameterWithoutEffect]); 12] = [
    ("ChatRequest", openai::parameters::WITHOUT_EFFECT),
    ("CompletionRequest", openai::parameters::WITHOUT_EFFECT),
    ("InfillRequest", openai::parameters::WITHOUT_EFFECT),
    ("InfillRequest", openai::infill::WISHES),
    ("ResponsesRequest", openai::responses::request::WITHOUT_EFFECT),
    ("EmbeddingsRequest", openai::embeddings::WITHOUT_EFFECT),
    ("MessagesRequest", anthropic::request::WITHOUT_EFFECT),
    ("CountTokensRequest", anthropic::request::WITHOUT_EFFECT),
    ("OllamaChatRequest", ollama::options::WITHOUT_EFFECT),
    ("OllamaGenerateRequest", ollama::options::WITHOUT_EFFECT),
    ("OllamaOptions", ollama::options::OPTIONS_WITHOUT_EFFECT),
    ("EmbedRequest", ollama::options::EMBED_WITHOUT_EFFECT),
];

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/openapi.json", get(description))
}

async fn description() -> Json<Document> {
    Json(described())
}

/// The id of an operation, which no other one has.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_owned(), |id, word| id + "_" + word)
}

/// The description, with the parameters without effect and a sentence for each response.
fn described() -> Document {
    let mut document = Description::openapi();
    let schemas = document.components.iter_mut().flat_map(|components| &mut components.schemas);
    for (name, schema) in schemas {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        let tables = TABLES.iter().filter(|(body, _)| body == name);
        for parameter in tables.flat_map(|(_, table)| *table) {
            let value = ObjectBuilder::new()
                .schema_type(SchemaType::AnyValue)
                .description(Some(format!("Without effect: {}.", parameter.why)));
            object.properties.insert(parameter.name.to_owned(), value.into());
        }
    }
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in
            [("get", &mut item.get), ("post", &mut item.post), ("delete", &mut item.delete)]
        {
            if let Some(operation) = operation {
                operation.operation_id = Some(operation_id(method, path));
            }
        }
    }
    let paths = document.paths.paths.values_mut();
    let operations = paths.flat_map(|path| [&mut path.get, &mut path.post, &mut path.delete]).flatten();
    for response in operations.flat_map(|operation| operation.responses.responses.values_mut()) {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = "The reply.".to_owned();
        }
    }
    document
}
