//! `/api/pull`, `/api/delete` and `/api/copy`: which models there are.

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use utoipa::ToSchema;

use super::model_name::without_latest;
use super::options::WITHOUT_EFFECT;
use crate::error::{ApiError, Dialect, OllamaErrorBody, OllamaErrorReplies, answer};
use crate::find_model::{find_model, read_folder};
use crate::json_body::{from_json_object, read_body};
use crate::model_changes::{ChangeEvent, ChangeProgress, ModelChange};
use crate::models::ListedModel;
use crate::sse::write_json;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/api/pull", post(pull))
        .route("/api/delete", delete(remove))
        .route("/api/copy", post(copy))
}

/// The body of `/api/pull`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PullRequest {
    /// The model's id on the hub: `org/name`, or `org/name:QUANT` for a GGUF file.
    #[serde(alias = "name")]
    model: String,
    /// Whether progress is sent. Default true.
    stream: Option<bool>,
    /// Must be false: digests and certificates are always checked.
    insecure: Option<bool>,
}

/// The body of `/api/delete`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DeleteRequest {
    /// The model's name.
    #[serde(alias = "name")]
    model: String,
}

/// The body of `/api/copy`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CopyRequest {
    /// The model's name.
    source: String,
    /// The other name.
    destination: String,
}

from_json_object!(PullRequest, DeleteRequest, CopyRequest);

/// How far a download is.
#[derive(ToSchema)]
#[allow(dead_code)] // describes `ChangeProgress`
pub struct PullLine {
    /// What is done now; the last one is `success`.
    status: String,
    /// The digest of the file that is downloaded.
    #[schema(required = false)]
    digest: String,
    /// Its size in bytes.
    #[schema(required = false)]
    total: u64,
    /// The bytes of it that have arrived.
    #[schema(required = false)]
    completed: u64,
}

/// Downloads a model into the server's folder.
#[utoipa::path(
    post,
    path = "/api/pull",
    tag = "ollama",
    request_body = PullRequest,
    responses(
        (status = 200, content(
            (PullLine = "application/json"),
            (String = "application/x-ndjson"),
        )),
        (status = 501, description = "The server was not started with --allow-pull.", body = OllamaErrorBody),
        OllamaErrorReplies,
    )
)]
pub async fn pull(State(state): State<Arc<ServerState>>, body: Bytes) -> Response {
    answer(Dialect::Ollama, pulled(state, body).await)
}

/// Deletes a model of the server's folder.
#[utoipa::path(
    delete,
    path = "/api/delete",
    tag = "ollama",
    request_body = DeleteRequest,
    responses(
        (status = 200),
        (status = 501, description = "The server was not started with --allow-pull.", body = OllamaErrorBody),
        OllamaErrorReplies,
    )
)]
pub async fn remove(State(state): State<Arc<ServerState>>, body: Bytes) -> Response {
    answer(Dialect::Ollama, removed(state, body).await)
}

/// Gives a model of the server's folder a second name.
#[utoipa::path(
    post,
    path = "/api/copy",
    tag = "ollama",
    request_body = CopyRequest,
    responses(
        (status = 200),
        (status = 501, description = "The server was not started with --allow-pull.", body = OllamaErrorBody),
        OllamaErrorReplies,
    )
)]
pub async fn copy(State(state): State<Arc<ServerState>>, body: Bytes) -> Response {
    answer(Dialect::Ollama, copied(state, body).await)
}

async fn pulled(state: Arc<ServerState>, body: Bytes) -> Result<Response, ApiError> {
    let body: PullRequest = read_body(body, WITHOUT_EFFECT).await?;
    if body.insecure == Some(true) {
        return Err(ApiError::unsupported("insecure", "insecure must be false: digests are always checked"));
    }
    let model = without_latest(&body.model).to_owned();
    check_is_of_folder(&state, "model", &model)?;
    let change = begun(state, ModelChange::Pull { model })?;
    if body.stream == Some(false) {
        change.end().await?;
        return Ok(Json(success()).into_response());
    }
    let lines = unfold(Some(change), |change| async {
        let mut change = change?;
        let mut line = Vec::new();
        let next = match change.next().await {
            Ok(Some(progress)) => {
                write_json(&mut line, &progress);
                Some(change)
            }
            Ok(None) => {
                write_json(&mut line, &success());
                None
            }
            Err(error) => {
                write_json(&mut line, &error.body(Dialect::Ollama));
                None
            }
        };
        line.push(b'\n');
        Some((Ok::<Bytes, Infallible>(Bytes::from(line)), next))
    });
    let mut response = Response::new(Body::from_stream(Box::pin(lines)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn removed(state: Arc<ServerState>, body: Bytes) -> Result<Response, ApiError> {
    let body: DeleteRequest = read_body(body, WITHOUT_EFFECT).await?;
    // One that is not served, or whose download has begun, is deleted, too.
    let model = without_latest(&body.model).to_owned();
    check_is_of_folder(&state, "model", &model)?;
    begun(state, ModelChange::Delete { model })?.end().await?;
    Ok(StatusCode::OK.into_response())
}

async fn copied(state: Arc<ServerState>, body: Bytes) -> Result<Response, ApiError> {
    let body: CopyRequest = read_body(body, WITHOUT_EFFECT).await?;
    let source = without_latest(&body.source);
    check_is_of_folder(&state, "source", source)?;
    let source = find_model(&state, Some(source)).await?.name.clone();
    let destination = without_latest(&body.destination).to_owned();
    check_is_of_folder(&state, "destination", &destination)?;
    begun(state, ModelChange::Copy { source, destination })?.end().await?;
    Ok(StatusCode::OK.into_response())
}

/// The last line of a change that succeeded.
fn success() -> ChangeProgress {
    ChangeProgress { status: "success".to_owned(), ..ChangeProgress::default() }
}

/// Checks that no model outside the server's folder has this name.
///
/// # Errors
/// When one has, or nothing may be changed.
fn check_is_of_folder(state: &ServerState, param: &str, name: &str) -> Result<(), ApiError> {
    check_allowed(state)?;
    // An adapter lies beside its model, whose name is another one.
    let is_elsewhere = |model: &Arc<ListedModel>| model.version.is_none() || model.adapter.is_some();
    if !state.models.list().iter().any(|model| model.id() == name && is_elsewhere(model)) {
        return Ok(());
    }
    let message = format!("{name} is not in the folder of --models, and only models there are changed");
    Err(ApiError::unsupported(param, message))
}

/// Refuses changes unless the server was started to make them.
fn check_allowed(state: &ServerState) -> Result<(), ApiError> {
    if state.model_changer.is_some() && state.models.folder().is_some() {
        return Ok(());
    }
    let message = "which models are served is decided when the server starts; start it with --models DIR --allow-pull \
                   SIZE to let clients change that";
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", message))
}

/// A change that was begun.
struct BegunChange {
    state: Arc<ServerState>,
    /// The model that is there afterwards, if it is a new one.
    pulled: Option<String>,
    events: UnboundedReceiver<ChangeEvent>,
    /// Dropping it cancels the change.
    _handle: Box<dyn Any + Send>,
}

/// Begins a change.
fn begun(state: Arc<ServerState>, change: ModelChange) -> Result<BegunChange, ApiError> {
    check_allowed(&state)?;
    let changer = state.model_changer.as_ref().ok_or_else(|| ApiError::internal("nothing changes models"))?;
    let pulled = match &change {
        ModelChange::Pull { model } => Some(model.clone()),
        ModelChange::Delete { .. } | ModelChange::Copy { .. } => None,
    };
    let (sender, events) = unbounded_channel();
    // The receiver is gone if the client has left.
    let listener = Box::new(move |event| drop(sender.send(event)));
    let handle = changer.begin(change, listener)?;
    Ok(BegunChange { state, pulled, events, _handle: handle })
}

impl BegunChange {
    /// The next progress; `None` when the change has succeeded, and the models are read again.
    async fn next(&mut self) -> Result<Option<ChangeProgress>, ApiError> {
        match self.events.recv().await {
            Some(ChangeEvent::Progress(progress)) => Ok(Some(progress)),
            Some(ChangeEvent::Ended(end)) => {
                end?;
                read_folder(&self.state).await?;
                self.check_is_served()?;
                Ok(None)
            }
            None => Err(ApiError::internal("the process that changes models has ended; restart the server")),
        }
    }

    /// Refuses to say that a model is there which was downloaded and cannot be served. Its files stay: another version
    /// of the server may serve it, and an encoder is served when it is named.
    fn check_is_served(&self) -> Result<(), ApiError> {
        let refusal = |name: &String| Some((name.clone(), self.state.models.folder()?.refusal(name)?));
        let Some((name, reason)) = self.pulled.as_ref().and_then(refusal) else { return Ok(()) };
        let message = format!(
            "{name} was downloaded and cannot be served: {reason}; its files stay in the folder and count as used until \
             /api/delete removes them"
        );
        Err(ApiError::unsupported("model", message))
    }

    /// Waits for the end.
    async fn end(mut self) -> Result<(), ApiError> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}
