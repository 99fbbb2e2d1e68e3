//! The prompts of requests to OpenAI's routes as the model reads them, in the form of vLLM's `/render` routes: a
//! router finds with them where the prompt is cached.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use girih::{RenderedImage, RenderedPrompt};
use serde::Serialize;
use utoipa::ToSchema;

use super::chat_request::ChatRequest;
use super::completion_request::CompletionRequest;
use super::parameters::WITHOUT_EFFECT;
use crate::caller::ApiCaller;
use crate::error::{ApiError, ErrorReplies};
use crate::hexadecimal::hexadecimal;
use crate::json_body::read_body;
use crate::rendering::render;
use crate::request_id::new_id;
use crate::state::ServerState;

/// The kind under which images and groups of frames are listed, as vLLM lists images.
const IMAGE: &str = "image";

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/v1/completions/render", post(render_completion))
        .route("/v1/chat/completions/render", post(render_chat))
}

/// A prompt as the model reads it: the part of vLLM's `GenerateRequest` that says what the prompt is.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderReply {
    /// A new id.
    pub request_id: String,
    /// The tokens of the prompt.
    pub token_ids: Vec<u32>,
    /// Its images; `null` without any.
    pub features: Option<RenderedFeatures>,
    /// How long the reply may be.
    pub sampling_params: RenderedLimits,
}

/// The images of a prompt, by kind, in order.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderedFeatures {
    /// What identifies each, in hexadecimal; events of the KV cache have it in `extra_keys`.
    pub mm_hashes: BTreeMap<&'static str, Vec<String>>,
    /// Where its tokens lie.
    pub mm_placeholders: BTreeMap<&'static str, Vec<RenderedPlace>>,
}

/// Where the tokens of an image lie.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderedPlace {
    /// The index of the first token.
    pub offset: usize,
    /// The number of tokens.
    pub length: usize,
}

/// How long a reply may be.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderedLimits {
    /// The maximum number of tokens.
    pub max_tokens: u32,
}

/// The prompts of a request to `/v1/completions`, one for each.
#[utoipa::path(
    post,
    path = "/v1/completions/render",
    tag = "openai",
    request_body = CompletionRequest,
    responses((status = 200, body = Vec<RenderReply>), ErrorReplies)
)]
pub async fn render_completion(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Json<Vec<RenderReply>>, ApiError> {
    let body: CompletionRequest = read_body(body, WITHOUT_EFFECT).await?;
    let rendered = render(&state, &caller, body.checked()?).await?;
    Ok(Json(rendered.into_iter().map(|prompt| RenderReply::new("cmpl", prompt)).collect()))
}

/// The prompt of a request to `/v1/chat/completions`.
#[utoipa::path(
    post,
    path = "/v1/chat/completions/render",
    tag = "openai",
    request_body = ChatRequest,
    responses((status = 200, body = RenderReply), ErrorReplies)
)]
pub async fn render_chat(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Json<RenderReply>, ApiError> {
    let body: ChatRequest = read_body(body, WITHOUT_EFFECT).await?;
    let rendered = render(&state, &caller, body.checked()?).await?;
    let prompt = rendered.into_iter().next().expect("a chat has one prompt");
    Ok(Json(RenderReply::new("chatcmpl", prompt)))
}

impl RenderReply {
    fn new(prefix: &str, prompt: RenderedPrompt) -> RenderReply {
        let RenderedPrompt { tokens, max_tokens, images, .. } = prompt;
        RenderReply {
            request_id: format!("{prefix}-{}", new_id()),
            token_ids: tokens,
            features: (!images.is_empty()).then(|| RenderedFeatures::new(&images)),
            sampling_params: RenderedLimits { max_tokens },
        }
    }
}

impl RenderedFeatures {
    fn new(images: &[RenderedImage]) -> RenderedFeatures {
        let hashes = images.iter().map(|image| hexadecimal(&image.content));
        let place =
            |image: &RenderedImage| RenderedPlace { offset: image.place.start, length: image.place.len() };
        RenderedFeatures {
            mm_hashes: [(IMAGE, hashes.collect())].into(),
            mm_placeholders: [(IMAGE, images.iter().map(place).collect())].into(),
        }
    }
}
