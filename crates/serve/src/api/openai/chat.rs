//! `/v1/chat/completions`: replies to a conversation.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use super::chat_reply::{ChatChunks, ChatReply, ReplyHead};
use super::chat_request::ChatRequest;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::generation::begin;
use crate::json_body::read_json;
use crate::request_id::new_id;
use crate::sse::stream_response;
use crate::state::ServerState;

/// What decides a reply besides the request: the program.
pub const FINGERPRINT: &str = concat!("girih-", env!("CARGO_PKG_VERSION"));

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/chat/completions", post(complete))
}

async fn complete(
    State(state): State<Arc<ServerState>>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: ChatRequest = read_json(&body)?;
    let generation = begin(&state, &caller, body.checked()?).await?;
    let is_stream = body.stream == Some(true);
    let head = ReplyHead {
        id: format!("chatcmpl-{}", new_id()),
        object: if is_stream { "chat.completion.chunk" } else { "chat.completion" },
        created: unix_seconds(),
        model: generation.model_name.to_string(),
        system_fingerprint: FINGERPRINT,
    };
    if is_stream {
        let chunks = ChatChunks::new(head, generation.replies(), body.includes_usage());
        return Ok(stream_response(generation, chunks));
    }
    Ok(Json(ChatReply::read(head, generation).await?).into_response())
}

/// The time in seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
