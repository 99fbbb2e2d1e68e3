//! Sends spans to a collector in batches, on the server's threads. Nobody waits for it: spans that it
//! cannot take or deliver are dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST};
use axum::http::{self, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::collector::TraceCollector;
use super::span::{TracedRequest, attribute};
use crate::observe::access_log::EndedRequest;
use crate::observe::metrics::Metrics;
use crate::request_id::new_id;

/// The requests whose spans may wait for the exporter.
const MAX_WAITING: usize = 2048;

/// The spans after which a batch is sent.
const BATCH_SPANS: usize = 512;

/// The time after which a smaller batch is sent.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// The time that a collector has to take a batch.
const POST_TIME: Duration = Duration::from_secs(10);

/// The pauses before a batch is sent again.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// The time for what waits when the server ends.
const FINISH_TIME: Duration = Duration::from_secs(2);

/// The maximum length of a collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Sends spans to a collector. Clones share it.
#[derive(Clone)]
pub(crate) struct TraceExporter {
    traces: mpsc::Sender<Vec<Span>>,
    end: Arc<watch::Sender<ExportPhase>>,
    metrics: Arc<Metrics>,
    scheme: &'static str,
}

/// What the exporter does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExportPhase {
    Exporting,
    /// It sends what waits, and ends.
    Finishing,
    Ended,
}

impl TraceExporter {
    /// Starts one on the threads of this runtime. `scheme` is that of the server's own addresses.
    pub fn start(collector: TraceCollector, scheme: &'static str, metrics: Arc<Metrics>) -> TraceExporter {
        let (traces, waiting) = mpsc::channel(MAX_WAITING);
        let end = Arc::new(watch::Sender::new(ExportPhase::Exporting));
        let task = ExportTask {
            collector,
            resource: resource(),
            metrics: Arc::clone(&metrics),
            phase: end.subscribe(),
        };
        let ending = Arc::clone(&end);
        tokio::spawn(async move {
            task.run(waiting).await;
            ending.send_replace(ExportPhase::Ended);
        });
        TraceExporter { traces, end, metrics, scheme }
    }

    /// The request as part of a trace, unless its caller does not record that one.
    pub fn begin(&self, request: &Request) -> Option<TracedRequest> {
        TracedRequest::begin(request)
    }

    /// Queues the spans of a request that has ended.
    pub fn end(&self, traced: &TracedRequest, ended: &EndedRequest<'_>) {
        let spans = traced.spans(ended, self.scheme);
        let count = spans.len();
        if self.traces.try_send(spans).is_err() {
            self.metrics.count_spans("dropped", count);
        }
    }

    /// Sends what waits, for a limited time, and ends.
    pub async fn finish(&self) {
        let mut phase = self.end.subscribe();
        self.end.send_if_modified(|phase| {
            let is_exporting = *phase == ExportPhase::Exporting;
            if is_exporting {
                *phase = ExportPhase::Finishing;
            }
            is_exporting
        });
        // What is not delivered by now is lost.
        let _ = timeout(FINISH_TIME, phase.wait_for(|phase| *phase == ExportPhase::Ended)).await;
    }
}

/// What describes this server to the collector.
fn resource() -> Resource {
    let text = |key: &str, value: &str| attribute(key, Value::StringValue(value.to_owned()));
    let attributes = vec![
        text("service.name", "girih"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", &new_id()),
    ];
    Resource { attributes, ..Resource::default() }
}

/// Why a batch was not taken.
enum PostFault {
    /// Another attempt may succeed.
    Passing,
    /// It would be refused again.
    Lasting,
}

struct ExportTask {
    collector: TraceCollector,
    resource: Resource,
    metrics: Arc<Metrics>,
    phase: watch::Receiver<ExportPhase>,
}

impl ExportTask {
    /// Sends batches until the server ends.
    async fn run(mut self, mut waiting: mpsc::Receiver<Vec<Span>>) {
        loop {
            let batch = self.next_batch(&mut waiting).await;
            let is_last = *self.phase.borrow() != ExportPhase::Exporting;
            for spans in batch.chunks(BATCH_SPANS) {
                self.deliver(spans).await;
            }
            if is_last {
                return;
            }
        }
    }

    /// Waits for spans, and collects those that come soon after them; all that wait, when the server ends.
    async fn next_batch(&mut self, waiting: &mut mpsc::Receiver<Vec<Span>>) -> Vec<Span> {
        let mut batch = Vec::new();
        let finishing = self.phase.wait_for(|phase| *phase != ExportPhase::Exporting);
        let collecting = async {
            batch.extend(waiting.recv().await.unwrap_or_default());
            let full = async {
                while batch.len() < BATCH_SPANS {
                    let Some(spans) = waiting.recv().await else { break };
                    batch.extend(spans);
                }
            };
            // A batch that is not full by then is sent as it is.
            let _ = timeout(BATCH_TIME, full).await;
        };
        let is_finishing = tokio::select! {
            _ = finishing => true,
            () = collecting => false,
        };
        if is_finishing {
            while let Ok(spans) = waiting.try_recv() {
                batch.extend(spans);
            }
        }
        batch
    }

    /// Sends spans, again after passing faults unless the server ends, and counts what became of them.
    async fn deliver(&mut self, spans: &[Span]) {
        let body = Bytes::from(self.request(spans.to_vec()).encode_to_vec());
        let mut pauses = RETRY_PAUSES.iter();
        loop {
            let posted = timeout(POST_TIME, self.post(body.clone())).await.unwrap_or(Err(PostFault::Passing));
            match posted {
                Ok(rejected) => {
                    let rejected = rejected.min(spans.len());
                    self.metrics.count_spans("exported", spans.len() - rejected);
                    self.metrics.count_spans("dropped", rejected);
                    return;
                }
                Err(PostFault::Passing) => {
                    let Some(pause) = pauses.next() else { break };
                    tokio::select! {
                        () = sleep(*pause) => {}
                        _ = self.phase.wait_for(|phase| *phase != ExportPhase::Exporting) => break,
                    }
                }
                Err(PostFault::Lasting) => break,
            }
        }
        self.metrics.count_spans("dropped", spans.len());
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }

    /// Posts a batch on a connection of its own; returns the number of spans that the collector rejects.
    async fn post(&self, body: Bytes) -> Result<usize, PostFault> {
        let TraceCollector { authority, path, addresses } = &self.collector;
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|_| PostFault::Passing)?;
        let connected = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(|_| PostFault::Passing)?;
        let mut tasks = JoinSet::new(); // ends the connection when it is dropped
        tasks.spawn(connection);
        let request = http::Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|_| PostFault::Lasting)?;
        let response = sender.send_request(request).await.map_err(|_| PostFault::Passing)?;
        match response.status() {
            status if status.is_success() => {
                let answer = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
                // The batch was taken, whatever else the answer says.
                let answer = answer.map(|answer| answer.to_bytes()).unwrap_or_default();
                let answer = ExportTraceServiceResponse::decode(answer).unwrap_or_default();
                let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
                Ok(usize::try_from(rejected).unwrap_or(0))
            }
            // Those that the specification of OTLP lets clients send again.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(PostFault::Passing),
            _ => Err(PostFault::Lasting),
        }
    }
}
