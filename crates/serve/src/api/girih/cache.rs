//! `/v1/girih/cache`: why the caller's last prompts were not served from the prefix cache.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::cache_reports::{KeptReport, part_name};
use crate::caller::ApiCaller;
use crate::error::ErrorReplies;
use crate::state::ServerState;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/v1/girih/cache", get(reports))
}

/// The caller's last prompts, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct CacheReportList {
    /// At most 16.
    #[schema(max_items = 16)]
    data: Vec<CacheReportBody>,
}

/// How much of a prompt was cached, and why not more.
#[derive(Debug, Serialize, ToSchema)]
pub struct CacheReportBody {
    model: String,
    /// When its prompt had been run, in seconds since 1970.
    time: u64,
    prompt_tokens: u32,
    cached_tokens: u32,
    /// `whole`, `first`, `differs`, `evicted` or `window`.
    reason: &'static str,
    /// The first token that is not that of the nearest earlier prompt of the caller.
    position: Option<u32>,
    /// The part of the prompt in which it lies: `start`, `system`, `tools` or `message N ROLE`.
    part: Option<String>,
    /// The text from there on, if the server logs prompts.
    text: Option<String>,
}

/// Why the caller's last prompts were not served from the prefix cache.
#[utoipa::path(
    get,
    path = "/v1/girih/cache",
    tag = "girih",
    responses((status = 200, body = CacheReportList), ErrorReplies)
)]
pub async fn reports(State(state): State<Arc<ServerState>>, caller: ApiCaller) -> Json<CacheReportList> {
    let reports = state.cache_reports.of(&caller.tenant);
    Json(CacheReportList { data: reports.into_iter().map(CacheReportBody::from).collect() })
}

impl From<KeptReport> for CacheReportBody {
    fn from(kept: KeptReport) -> CacheReportBody {
        let KeptReport { model, time, report } = kept;
        CacheReportBody {
            model,
            time,
            prompt_tokens: report.prompt,
            cached_tokens: report.cached,
            reason: report.reason.name(),
            position: report.position,
            part: report.part.as_ref().map(part_name),
            text: report.text,
        }
    }
}
