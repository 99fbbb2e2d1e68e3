//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them: adapters that come and go while the server runs.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::adapter_changes::{load, unload};
use crate::error::{ApiError, ErrorBody, ErrorReplies};
use crate::json_body::{from_json_object, read_body};
use crate::state::ServerState;

/// The maximum number of bytes of a name.
const MAX_NAME_BYTES: usize = 200;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/load_lora_adapter", post(add)).route("/v1/unload_lora_adapter", post(remove))
}

/// The body of `/v1/load_lora_adapter`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct LoadAdapterRequest {
    /// The name by which requests choose it.
    lora_name: String,
    /// A folder of PEFT or a GGUF file, below the folder of `--allow-adapters`.
    lora_path: String,
    /// The model beside which it is loaded. Default: the first one.
    base_model_name: Option<String>,
}

/// The body of `/v1/unload_lora_adapter`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct UnloadAdapterRequest {
    /// Its name.
    lora_name: String,
}

/// Loads an adapter; answers when requests can name it.
#[utoipa::path(
    post,
    path = "/v1/load_lora_adapter",
    tag = "girih",
    request_body = LoadAdapterRequest,
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 501, description = "The server was not started with --allow-adapters.", body = ErrorBody),
        ErrorReplies,
    )
)]
pub async fn add(State(state): State<Arc<ServerState>>, body: Bytes) -> Result<String, ApiError> {
    let folder = folder(&state)?;
    let LoadAdapterRequest { lora_name, lora_path, base_model_name } = read_body(body, &[]).await?;
    check_name(&lora_name)?;
    let name = lora_name.clone();
    // To the end, also if the client leaves.
    let work =
        tokio::spawn(async move { load(state, &folder, base_model_name.as_deref(), name, &lora_path).await });
    work.await.unwrap_or_else(|_| Err(ApiError::internal("the adapter met a fault of the server")))?;
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Unloads an adapter, when the requests of its model have ended.
#[utoipa::path(
    post,
    path = "/v1/unload_lora_adapter",
    tag = "girih",
    request_body = UnloadAdapterRequest,
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 501, description = "The server was not started with --allow-adapters.", body = ErrorBody),
        ErrorReplies,
    )
)]
pub async fn remove(State(state): State<Arc<ServerState>>, body: Bytes) -> Result<String, ApiError> {
    let folder = folder(&state)?;
    let UnloadAdapterRequest { lora_name } = read_body(body, &[]).await?;
    let name = lora_name.clone();
    let work = tokio::spawn(async move { unload(state, &folder, &name).await });
    work.await.unwrap_or_else(|_| Err(ApiError::internal("the adapter met a fault of the server")))?;
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

/// The folder of adapters.
///
/// # Errors
/// When clients may load none: status 501.
fn folder(state: &ServerState) -> Result<PathBuf, ApiError> {
    state.adapter_folder.clone().ok_or_else(|| {
        let message = "which adapters are served is decided when the server starts; start it with --allow-adapters DIR to \
                       let clients change that";
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", message)
    })
}

/// Checks that an adapter can have this name.
fn check_name(name: &str) -> Result<(), ApiError> {
    let is_of_name = |c: char| !c.is_whitespace() && !c.is_control();
    if (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.chars().all(is_of_name)
        && !name.ends_with(":latest")
    {
        return Ok(());
    }
    let message = format!(
        "lora_name is no name of an adapter: 1 to {MAX_NAME_BYTES} bytes without spaces, and without ':latest' at the end, \
         are needed"
    );
    Err(ApiError::invalid("lora_name", message))
}

from_json_object!(LoadAdapterRequest, UnloadAdapterRequest);
