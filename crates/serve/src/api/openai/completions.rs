//! `/v1/completions`: continuations of texts.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use girih::Prompt;

use super::completion_reply::{CompletionChunks, CompletionReply, EchoedTexts};
use super::completion_request::CompletionRequest;
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
    Router::new().route("/v1/completions", post(complete))
}

/// Continuations of texts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "openai",
    request_body = CompletionRequest,
    responses(
        (status = 200, content(
            (CompletionReply = "application/json"),
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
    let body: CompletionRequest = read_body(body, WITHOUT_EFFECT).await?;
    let request = body.checked()?;
    let prompts = if body.echoes() { request.prompts.clone() } else { Vec::new() };
    let (count, has_tokens) = (request.count as usize, request.prompt_logprobs.is_some());
    let (is_stream, includes_usage) = (body.stream == Some(true), body.includes_usage());
    drop(body);
    let generation = begin(&state, &caller, request).await?;
    let head = ReplyHead::new("cmpl", "text_completion", &generation);
    let text = |prompt| match prompt {
        Prompt::Tokens(tokens) => generation.model.detokenize(&tokens),
        Prompt::Text(text) => Ok(text),
        Prompt::Conversation(_) => Ok(String::new()),
    };
    let prompts: girih::Result<Vec<String>> = prompts.into_iter().map(text).collect();
    let echoed = EchoedTexts { prompts: prompts?, count, has_tokens };
    if is_stream {
        let choices = generation.replies();
        let chunks = CompletionChunks::new(head, echoed, choices, includes_usage);
        return stream_response(generation, chunks).await;
    }
    Ok(Json(CompletionReply::read(head, echoed, generation).await?).into_response())
}
