//! What is served, in Ollama's form: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use girih::graph::WeightSource as _;
use girih::{DType, Model, Plan, Sampling};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::model_name::without_latest;
use super::options::WITHOUT_EFFECT;
use super::timestamp::rfc3339;
use crate::background::in_background;
use crate::error::{ApiError, Dialect, OllamaErrorReplies, answer};
use crate::find_model::{current_models, find_model};
use crate::hexadecimal::hexadecimal;
use crate::json_body::{from_json_object, read_body};
use crate::models::ListedModel;
use crate::state::ServerState;
use crate::thinking::TemplateThinking;

/// `expires_at` of a model that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// Times from here on, some 7900 years after 1970, are written as never: RFC 3339 has four digits for a year.
const LAST_YEAR: Duration = Duration::from_secs(7900 * 365 * 86_400);

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/api/tags", get(tags))
        .route("/api/ps", get(processes))
        .route("/api/show", post(show))
        .route("/api/version", get(version))
}

/// The models that are served, or those of them that are loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaModels {
    models: Vec<OllamaModel>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaModel {
    name: String,
    model: String,
    /// When the server was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified_at: Option<String>,
    /// The size of its weights in bytes; of a loaded model, all memory that it takes.
    size: u64,
    /// Tells models apart. It is computed from the files' sizes and times and the names of the weights,
    /// not from all of their bytes.
    digest: String,
    details: ModelDetails,
    /// When it is unloaded, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Always 0, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    /// The maximum number of tokens of a prompt and its reply, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
}

/// What a model is.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelDetails {
    parent_model: String,
    /// `gguf` or `safetensors`.
    format: String,
    family: String,
    families: Vec<String>,
    /// Such as `1.24B`.
    parameter_size: String,
    /// The format of most of the weights.
    quantization_level: String,
}

/// The body of `/api/show`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ShowRequest {
    /// The model's name, with or without the tag `latest`.
    #[serde(alias = "name")]
    pub model: String,
}

/// More about a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShowReply {
    modelfile: String,
    /// The sampling settings with which it ships.
    parameters: String,
    /// Its chat template.
    template: String,
    details: ModelDetails,
    model_info: Map<String, Value>,
    /// Such as `completion`, `vision`, `tools`.
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// The version of girih.
#[derive(Debug, Serialize, ToSchema)]
pub struct VersionReply {
    version: &'static str,
}

/// The sizes of a model's weights.
struct WeightSizes {
    parameters: u64,
    bytes: u64,
    /// The format of most of the bytes.
    main: Option<DType>,
}

impl WeightSizes {
    fn of(model: &Model) -> WeightSizes {
        let weights = &model.files().weights;
        let stored: Vec<_> = weights.names().filter_map(|name| weights.stored(name)).collect();
        let bytes_of = |dtype| {
            let of_dtype = stored.iter().filter(|(_, info)| info.dtype == dtype);
            of_dtype.fold(0, |sum: u64, (_, info)| sum.saturating_add(info.bytes))
        };
        WeightSizes {
            parameters: model.parameters(),
            bytes: stored.iter().fold(0, |sum: u64, (_, info)| sum.saturating_add(info.bytes)),
            main: stored.iter().map(|(_, info)| info.dtype).max_by_key(|&dtype| bytes_of(dtype)),
        }
    }
}

impl ModelDetails {
    fn of(model: &Model, sizes: &WeightSizes) -> ModelDetails {
        let family = model.files().facts.name.clone();
        let count = sizes.parameters as f64;
        ModelDetails {
            parent_model: String::new(),
            format: format!("{:?}", model.files().weights.container().kind()).to_lowercase(),
            families: vec![family.clone()],
            family,
            parameter_size: match count {
                1e9.. => format!("{:.2}B", count / 1e9),
                1e6.. => format!("{:.2}M", count / 1e6),
                _ => format!("{:.2}K", count / 1e3),
            },
            quantization_level: sizes.main.map_or_else(String::new, |dtype| dtype.name().to_uppercase()),
        }
    }
}

impl OllamaModel {
    fn of(state: &ServerState, served: &ListedModel) -> OllamaModel {
        let model = &served.model;
        let sizes = WeightSizes::of(model);
        OllamaModel {
            name: served.id().to_owned(),
            model: served.id().to_owned(),
            modified_at: Some(rfc3339(Duration::from_secs(state.models.created()))),
            size: sizes.bytes,
            digest: digest(served),
            details: ModelDetails::of(model, &sizes),
            expires_at: None,
            size_vram: None,
            context_length: None,
        }
    }
}

/// 64 hexadecimal digits.
fn digest(served: &ListedModel) -> String {
    let identity = served.model.files().weights.identity();
    let mut bytes = identity.unwrap_or_else(|| Sha256::digest(served.source.as_bytes()).into());
    if let Some(adapter) = &served.adapter {
        bytes = Sha256::digest([&bytes[..], adapter.as_bytes()].concat()).into();
    }
    hexadecimal(&bytes)
}

/// Tells the version of girih.
#[utoipa::path(
    get,
    path = "/api/version",
    tag = "ollama",
    responses((status = 200, body = VersionReply), OllamaErrorReplies)
)]
pub async fn version() -> Json<VersionReply> {
    Json(VersionReply { version: env!("CARGO_PKG_VERSION") })
}

/// Lists the models that are served.
#[utoipa::path(
    get,
    path = "/api/tags",
    tag = "ollama",
    responses((status = 200, body = OllamaModels), OllamaErrorReplies)
)]
pub async fn tags(State(state): State<Arc<ServerState>>) -> Response {
    let models = current_models(&state).await.map(|models| {
        let models = models.iter().map(|model| OllamaModel::of(&state, model)).collect();
        Json(OllamaModels { models }).into_response()
    });
    answer(Dialect::Ollama, models)
}

/// Lists the models that are loaded.
#[utoipa::path(
    get,
    path = "/api/ps",
    tag = "ollama",
    responses((status = 200, body = OllamaModels), OllamaErrorReplies)
)]
pub async fn processes(State(state): State<Arc<ServerState>>) -> Json<OllamaModels> {
    let generating = state.models.loaded().into_iter().map(|model| {
        let expires_at = state.models.unloaded_at(&model).filter(|time| *time < LAST_YEAR);
        (model.name, model.bytes, expires_at.map_or_else(|| NEVER.to_owned(), rfc3339))
    });
    // Encoders stay loaded.
    let encoders = state.models.encoders().iter();
    let encoders = encoders.map(|(name, encoder)| (name.clone(), encoder.bytes(), NEVER.to_owned()));
    let entries: Vec<(String, u64, String)> = generating.chain(encoders).collect();
    let loaded = |served: &Arc<ListedModel>| {
        let (_, size, expires_at) = entries.iter().find(|(name, ..)| *name == served.name)?;
        let context_length = Some(Plan::context_of(&served.model, &served.run_options));
        let model = OllamaModel::of(&state, served);
        let (expires_at, size_vram) = (Some(expires_at.clone()), Some(0));
        Some(OllamaModel { size: *size, modified_at: None, expires_at, size_vram, context_length, ..model })
    };
    Json(OllamaModels { models: state.models.list().iter().filter_map(loaded).collect() })
}

/// Tells more about a model.
#[utoipa::path(
    post,
    path = "/api/show",
    tag = "ollama",
    request_body = ShowRequest,
    responses((status = 200, body = ShowReply), OllamaErrorReplies)
)]
pub async fn show(State(state): State<Arc<ServerState>>, body: Bytes) -> Response {
    answer(Dialect::Ollama, shown(&state, body).await)
}

async fn shown(state: &Arc<ServerState>, body: Bytes) -> Result<Response, ApiError> {
    let body: ShowRequest = read_body(body, WITHOUT_EFFECT).await?;
    let model = find_model(state, Some(without_latest(&body.model))).await?;
    let created = state.models.created();
    // The tokenizer is opened when it is first needed.
    in_background(move || Ok(Json(ShowReply::of(&model, created)?).into_response())).await
}

impl ShowReply {
    fn of(served: &ListedModel, created: u64) -> Result<ShowReply, ApiError> {
        let model = &served.model;
        let sizes = WeightSizes::of(model);
        let template = model.text_processor()?.template.as_ref();
        Ok(ShowReply {
            modelfile: String::new(),
            parameters: parameters(&model.default_sampling()),
            template: template
                .map(|template| template.source(None))
                .transpose()?
                .unwrap_or_default()
                .to_owned(),
            details: ModelDetails::of(model, &sizes),
            model_info: model_info(model, &sizes),
            capabilities: capabilities(served)?,
            modified_at: rfc3339(Duration::from_secs(created)),
        })
    }
}

/// The settings of the samplers, one in a line.
fn parameters(sampling: &Sampling) -> String {
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = sampling;
    format!(
        "temperature {temperature}\ntop_k {top_k}\ntop_p {top_p}\nmin_p {min_p}\nrepeat_penalty {repetition_penalty}"
    )
}

fn model_info(model: &Model, sizes: &WeightSizes) -> Map<String, Value> {
    let facts = &model.files().facts;
    let arch = &facts.name;
    let mut info = Map::new();
    let mut set = |key: String, value: Value| info.insert(key, value);
    set("general.architecture".to_owned(), arch.as_str().into());
    set("general.parameter_count".to_owned(), sizes.parameters.into());
    set(format!("{arch}.context_length"), facts.sizes.context.into());
    set(format!("{arch}.embedding_length"), facts.sizes.width.into());
    set(format!("{arch}.block_count"), facts.layers.len().into());
    set(format!("{arch}.vocab_size"), facts.sizes.vocabulary.into());
    info
}

/// What a model can do, in Ollama's words.
fn capabilities(served: &ListedModel) -> Result<Vec<&'static str>, ApiError> {
    let model = &served.model;
    if model.files().facts.is_encoder() {
        return Ok(vec!["embedding"]);
    }
    let mut capabilities = vec!["completion"];
    if served.reads_images() {
        capabilities.push("vision");
    }
    let template = model.text_processor()?.template.as_ref();
    let reads_tools = match template {
        Some(template) => template.source(Some(&[]))?.contains("tools"),
        None => false,
    };
    if reads_tools && model.reply_style(true)?.has_calls() {
        capabilities.push("tools");
    }
    if TemplateThinking::of(model, None)?.thinks {
        capabilities.push("thinking");
    }
    Ok(capabilities)
}

from_json_object!(ShowRequest);
