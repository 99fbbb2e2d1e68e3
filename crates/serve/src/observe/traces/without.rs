//! What stands for an exporter of traces in a program without the feature `otlp`: nothing, as no
//! [`TraceCollector`] can be made.

use std::sync::Arc;

use axum::extract::Request;

use super::TraceCollector;
use crate::observe::access_log::EndedRequest;
use crate::observe::metrics::Metrics;

/// An exporter, of which there is none.
#[derive(Clone)]
pub(crate) enum TraceExporter {}

/// A request that is traced, of which there is none.
pub(crate) enum TracedRequest {}

impl TraceExporter {
    pub fn start(collector: TraceCollector, _scheme: &'static str, _metrics: Arc<Metrics>) -> TraceExporter {
        match collector.absent {}
    }

    pub fn begin(&self, _request: &Request) -> Option<TracedRequest> {
        match *self {}
    }

    pub fn end(&self, _traced: &TracedRequest, _ended: &EndedRequest<'_>) {
        match *self {}
    }

    pub async fn finish(&self) {
        match *self {}
    }
}
