//! `/v1/embeddings`: one vector for each text, by an encoder.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::embedding::{EmbeddingInput, Embeddings, LongInput, embed};
use crate::caller::ApiCaller;
use crate::error::{ApiError, ErrorReplies};
use crate::json_body::{from_json_object, read_body};
use crate::parameters::ParameterWithoutEffect;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/embeddings", post(create))
}

/// Parameters that change nothing here.
pub const WITHOUT_EFFECT: &[ParameterWithoutEffect] =
    &[ParameterWithoutEffect::any("user", "requests are told apart by their API keys")];

/// The body of `/v1/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct EmbeddingsRequest {
    /// The encoder's id.
    pub model: String,
    /// A text or its tokens, or at most 64 of them.
    pub input: EmbeddingsInput,
    /// The form of the vectors. Default `float`.
    pub encoding_format: Option<EncodingFormat>,
    /// The size of the vectors; only the model's own is supported.
    pub dimensions: Option<usize>,
}

/// A text or its tokens, or several of them.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "must be a string, an array of strings, an array of tokens, or an array of arrays of tokens"
)]
pub enum EmbeddingsInput {
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// The tokens of a text, with all special tokens.
    Tokens(Vec<u32>),
    /// The tokens of texts.
    TokenLists(Vec<Vec<u32>>),
}

/// The form of a vector.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// Numbers.
    #[default]
    Float,
    /// The bytes of 32-bit floats, the least significant first, in base64.
    Base64,
}

/// The reply of `/v1/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsReply {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: EmbeddingsUsage,
}

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingObject {
    object: &'static str,
    index: usize,
    embedding: EmbeddingVector,
}

/// A vector.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingVector {
    /// Its numbers.
    Numbers(Vec<f32>),
    /// Their bytes in base64.
    Base64(String),
}

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct EmbeddingsUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "openai",
    request_body = EmbeddingsRequest,
    responses((status = 200, body = EmbeddingsReply), ErrorReplies)
)]
pub async fn create(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Json<EmbeddingsReply>, ApiError> {
    let EmbeddingsRequest { model, input, encoding_format, dimensions, .. } =
        read_body(body, WITHOUT_EFFECT).await?;
    let how = (LongInput::Refuse, dimensions);
    let embeddings = embed(&state, &caller, &model, input.list(), how).await?;
    Ok(Json(EmbeddingsReply::of(embeddings, encoding_format.unwrap_or_default())))
}

impl EmbeddingsInput {
    fn list(self) -> Vec<EmbeddingInput> {
        match self {
            EmbeddingsInput::Text(text) => vec![EmbeddingInput::Text(text)],
            EmbeddingsInput::Texts(texts) => texts.into_iter().map(EmbeddingInput::Text).collect(),
            EmbeddingsInput::Tokens(tokens) => vec![EmbeddingInput::Tokens(tokens)],
            EmbeddingsInput::TokenLists(lists) => lists.into_iter().map(EmbeddingInput::Tokens).collect(),
        }
    }
}

impl EmbeddingsReply {
    fn of(embeddings: Embeddings, format: EncodingFormat) -> EmbeddingsReply {
        let Embeddings { model, vectors, tokens } = embeddings;
        let object = |(index, vector)| {
            let embedding = EmbeddingVector::of(vector, format);
            EmbeddingObject { object: "embedding", index, embedding }
        };
        EmbeddingsReply {
            object: "list",
            data: vectors.into_iter().enumerate().map(object).collect(),
            model,
            usage: EmbeddingsUsage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}

impl EmbeddingVector {
    fn of(vector: Vec<f32>, format: EncodingFormat) -> EmbeddingVector {
        match format {
            EncodingFormat::Float => EmbeddingVector::Numbers(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                EmbeddingVector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

from_json_object!(EmbeddingsRequest);
