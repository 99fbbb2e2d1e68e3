//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

pub mod call_input;
pub mod messages;
pub mod models;
pub mod reply;
pub mod request;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use girih::BosEos;
use serde::Serialize;
use utoipa::ToSchema;

use crate::background::in_background;
use crate::caller::ApiCaller;
use crate::error::{AnthropicErrorReplies, ApiError, Dialect, answer};
use crate::find_model::find_model;
use crate::generation::begin;
use crate::images::{decoded, first_image_of_messages, take_images};
use crate::json_body::read_body;
use crate::parameters::ParameterNotes;
use crate::ready_session::ready_session;
use crate::request_id::new_id;
use crate::sse::{ServerSentEvent, stream_response};
use crate::state::ServerState;
use reply::{MessageEvents, MessageReply};
use request::{CountTokensRequest, MessagesRequest};

/// The routes of Anthropic's API.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/messages", post(create)).route("/v1/messages/count_tokens", post(count))
}

/// The number of tokens of a prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// All tokens of the prompt, as the chat template writes it.
    pub input_tokens: usize,
}

/// Replies to a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = "anthropic",
    request_body = MessagesRequest,
    responses(
        (status = 200, content(
            (MessageReply = "application/json"),
            (ServerSentEvent = "text/event-stream"),
        )),
        AnthropicErrorReplies,
    )
)]
pub async fn create(State(state): State<Arc<ServerState>>, caller: ApiCaller, body: Bytes) -> Response {
    answer(Dialect::Anthropic, message(&state, &caller, body).await)
}

async fn message(state: &Arc<ServerState>, caller: &ApiCaller, body: Bytes) -> Result<Response, ApiError> {
    let body: MessagesRequest = read_body(body, request::WITHOUT_EFFECT).await?;
    let (is_stream, request) = (body.stream == Some(true), body.checked()?);
    drop(body);
    let generation = begin(state, caller, request).await?;
    let id = format!("msg_{}", new_id());
    if is_stream {
        let events = MessageEvents::new(id, &generation);
        return stream_response(generation, events).await;
    }
    Ok(Json(MessageReply::read(id, generation).await?).into_response())
}

/// Counts the tokens of a prompt.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = "anthropic",
    request_body = CountTokensRequest,
    responses((status = 200, body = TokenCount), AnthropicErrorReplies)
)]
pub async fn count(State(state): State<Arc<ServerState>>, body: Bytes) -> Response {
    answer(Dialect::Anthropic, token_count(&state, body).await)
}

async fn token_count(state: &Arc<ServerState>, body: Bytes) -> Result<Response, ApiError> {
    let body: CountTokensRequest = read_body(body, request::WITHOUT_EFFECT).await?;
    let model = find_model(state, Some(&body.model)).await?;
    let (mut conversation, thinking) = (body.prompt().conversation()?, body.prompt().thinking()?);
    let session = ready_session(state, &model).await?;
    // Images are decoded, as a prompt's tokens depend on their sizes.
    let has_images = first_image_of_messages(&conversation.messages).is_some();
    let (turns, notes) = (model.turns(has_images).await?, ParameterNotes::current());
    in_background(move || {
        let _turns = turns;
        let model = session.model();
        if let Some(thinking) = thinking {
            // Whether it has an effect is told by the reply to the same request.
            let _why = thinking.apply(&mut conversation, model)?;
        }
        let images = decoded(take_images(&mut conversation)?, model, &notes, || true)?;
        let spans = model.render_with_images(&conversation, &images)?;
        let input_tokens = model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)?.len();
        Ok(Json(TokenCount { input_tokens }).into_response())
    })
    .await
}
