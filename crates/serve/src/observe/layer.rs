//! Watches each request from its headers to the last byte of its response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::access_log::{AccessLog, EndedRequest, NO_ROUTE};
use super::metrics::Metrics;
use super::record::RequestRecord;
use super::traces::{TraceExporter, TracedRequest};
use crate::error::ErrorCode;
use crate::request_id::HttpRequestId;

/// The status of a request whose client left before there was one, as nginx writes it.
const CLIENT_LEFT: u16 = 499;

/// What requests are told to.
#[derive(Clone)]
pub struct Observer {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The log.
    pub log: Option<AccessLog>,
    /// What sends traces to a collector.
    pub(crate) traces: Option<TraceExporter>,
}

impl Observer {
    /// One that only counts.
    pub fn new(metrics: Arc<Metrics>) -> Observer {
        Observer { metrics, log: None, traces: None }
    }
}

/// Counts a request and writes its line when its response has ended.
pub(crate) async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    let logs_body = observer.log.as_ref().is_some_and(|log| log.has_bodies);
    let record = Arc::new(RequestRecord::new(Arc::clone(&observer.metrics), logs_body));
    let traced = observer.traces.as_ref().and_then(|traces| traces.begin(&request));
    let is_head = *request.method() == Method::HEAD;
    let mut observed = ObservedRequest {
        observer,
        record: Arc::clone(&record),
        traced,
        id: extensions.get::<HttpRequestId>().map_or_else(|| "".into(), |id| Arc::clone(&id.0)),
        method: method_label(request.method()),
        route: extensions.get::<MatchedPath>().map_or(NO_ROUTE.to_owned(), |path| path.as_str().to_owned()),
        status: CLIENT_LEFT,
        code: None,
        is_complete: false,
    };
    let response = record.scope(next.run(request)).await;
    observed.status = response.status().as_u16();
    observed.code = response.extensions().get::<ErrorCode>().map(|code| code.0);
    // The body of a response to HEAD is not sent.
    observed.is_complete = is_head || response.body().is_end_stream();
    response.map(|body| Body::new(ObservedBody { body, observed }))
}

/// The method, if it is one of those that are known: a client may make up any.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [Method; 6] =
        [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE];
    const NAMES: [&str; 6] = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"];
    KNOWN.iter().position(|known| known == method).map_or("other", |at| NAMES[at])
}

/// A request whose response has not ended.
struct ObservedRequest {
    observer: Observer,
    record: Arc<RequestRecord>,
    traced: Option<TracedRequest>,
    id: Arc<str>,
    method: &'static str,
    route: String,
    status: u16,
    code: Option<&'static str>,
    is_complete: bool,
}

impl Drop for ObservedRequest {
    fn drop(&mut self) {
        let metrics = &self.observer.metrics;
        metrics.count_http(&self.route, self.method, self.status, self.code);
        if !self.is_complete {
            metrics.count_disconnect();
        }
        let facts = self.record.facts().clone();
        let ended = EndedRequest {
            id: &self.id,
            method: self.method,
            route: &self.route,
            status: self.status,
            code: self.code,
            is_disconnected: !self.is_complete,
            time: self.record.begun.elapsed(),
            facts: &facts,
        };
        if let Some(log) = &self.observer.log {
            log.write(&ended);
        }
        if let (Some(traces), Some(traced)) = (&self.observer.traces, &self.traced) {
            traces.end(traced, &ended);
        }
    }
}

/// The body of a response that is watched to its end. The body is dropped before the request's
/// line is written, as that ends its replies.
struct ObservedBody {
    body: Body,
    observed: ObservedRequest,
}

impl HttpBody for ObservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.observed.is_complete = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
