//! What stands for an exporter of traces in a program without the feature `otlp`: nothing, as no
//! [`TraceCollector`] can be made.

use std::sync::Arc;

use axum::extract::Request;

use super::TraceCollector;
use crate::observe::access_log::EndedRequest;
use crate::observe::metrics::Metrics;

/// Stands for an exporter; it has no value.
#[derive(Clone)]
pub(crate) enum NoExporter {}

/// Stands for a traced request; it has no value.
pub(crate) enum NoTrace {}

impl NoExporter {
    pub fn start(collector: TraceCollector, _scheme: &'static str, _metrics: Arc<Metrics>) -> NoExporter {
        match collector.absent {}
    }

    pub fn begin(&self, _request: &Request) -> Option<NoTrace> {
        match *self {}
    }

    pub fn end(&self, _traced: &NoTrace, _ended: &EndedRequest<'_>) {
        match *self {}
    }

    pub async fn finish(&self) {
        match *self {}
    }
}
