//! `/metrics`: what the server counts, for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::error::ErrorReplies;
use crate::state::ServerState;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/metrics", get(metrics))
}

/// Counts and times, in the text format of Prometheus or in OpenMetrics.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text"))), ErrorReplies)
)]
pub async fn metrics(State(state): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let is_open_metrics = accepted.is_some_and(|value| value.contains("application/openmetrics-text"));
    let media_type = if is_open_metrics { OPEN_METRICS } else { PROMETHEUS };
    state.metrics.set_engine_faults(&state.models.engine_faults());
    if let Some(events) = state.models.kv_events() {
        state.metrics.set_kv_events(events.counts());
    }
    let text = state.metrics.render(&state.models.loaded(), state.drain.requests(), is_open_metrics);
    ([(CONTENT_TYPE, media_type)], text).into_response()
}
