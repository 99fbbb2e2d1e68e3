//! `/v1/responses`: replies to a list of items. Nothing is stored between requests.

pub mod input;
pub mod request;
pub mod response;
pub mod tool;
pub mod writer;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use self::input::ResponsesInput;
use self::request::ResponsesRequest;
use self::response::ResponseObject;
use self::writer::{ResponseEvents, read};
use crate::caller::ApiCaller;
use crate::error::{ApiError, ErrorReplies};
use crate::generation::begin;
use crate::json_body::read_body;
use crate::sse::{ServerSentEvent, stream_response};
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/responses", post(create))
}

/// Replies to a list of items.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "openai",
    request_body = ResponsesRequest,
    responses(
        (status = 200, content(
            (ResponseObject = "application/json"),
            (ServerSentEvent = "text/event-stream"),
        )),
        ErrorReplies,
    )
)]
pub async fn create(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut body: ResponsesRequest = read_body(body, request::WITHOUT_EFFECT).await?;
    let request = body.checked()?;
    // The reply repeats the rest of the body.
    body.input = ResponsesInput::Text(String::new());
    let generation = begin(&state, &caller, request).await?;
    let response = ResponseObject::begun(&body, &generation);
    if body.stream == Some(true) {
        return stream_response(generation, ResponseEvents::new(response)).await;
    }
    Ok(Json(read(response, generation).await?).into_response())
}
