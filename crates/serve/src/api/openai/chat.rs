//! `/v1/chat/completions`: replies to a conversation.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use super::chat_reply::{ChatChunks, ChatReply};
use super::chat_request::ChatRequest;
use super::parameters::WITHOUT_EFFECT;
use super::reply_head::ReplyHead;
use crate::caller::ApiCaller;
use crate::error::{ApiError, ErrorReplies};
use crate::generation::begin;
use crate::json_body::read_body;
use crate::sse::{ServerSentEvent, stream_response};
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/chat/completions", post(complete))
}

/// Replies to a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "openai",
    request_body = ChatRequest,
    responses(
        (status = 200, content(
            (ChatReply = "application/json"),
            (ServerSentEvent = "text/event-stream"),
        )),
        ErrorReplies,
    )
)]
pub async fn complete(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: ChatRequest = read_body(body, WITHOUT_EFFECT).await?;
    let (is_stream, includes_usage, form) =
        (body.stream == Some(true), body.includes_usage(), body.call_form());
    let request = body.checked()?;
    drop(body);
    let generation = begin(&state, &caller, request).await?;
    let object = if is_stream { "chat.completion.chunk" } else { "chat.completion" };
    let head = ReplyHead::new("chatcmpl", object, &generation);
    if is_stream {
        let chunks = ChatChunks::new(head, generation.replies(), includes_usage, form);
        return stream_response(generation, chunks).await;
    }
    Ok(Json(ChatReply::read(head, generation, form).await?).into_response())
}
