//! Traces that a server sends to a collector: their ids, parents, times and attributes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use girih_serve::drain::Drain;
use girih_serve::listener::{self, ListenerOptions};
use girih_serve::observe::TraceCollector;
use girih_serve::{ServeOptions, Server};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

use crate::client::Exchange;
use crate::model_server::{get, options};

/// A collector that keeps what is sent to it.
struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    /// One that answers with these statuses in turn, and then with 200.
    fn start(statuses: &[u16]) -> Collector {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("an address");
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bodies);
        let statuses = Arc::new(Mutex::new(statuses.to_vec()));
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            let mut statuses = statuses.lock().expect("no panic");
            if !statuses.is_empty() {
                return StatusCode::from_u16(statuses.remove(0)).expect("a status");
            }
            kept.lock().expect("no panic").push(body);
            StatusCode::OK
        };
        let router = Router::new().route("/v1/traces", post(take));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let socket = tokio::net::TcpListener::from_std(socket).expect("a socket");
                listener::serve(socket, router, ListenerOptions::default(), Drain::default()).await;
            });
        });
        Collector { address, bodies }
    }

    /// The options of a server that sends its traces here.
    fn server(&self) -> Server {
        let collector = TraceCollector::at(&format!("http://{}", self.address)).expect("a collector");
        Server::start(ServeOptions { collector: Some(collector), ..options() }).expect("a server")
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let bodies = self.bodies.lock().expect("no panic");
        bodies.iter().map(|body| ExportTraceServiceRequest::decode(body.clone()).expect("OTLP")).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|spans| spans.scope_spans).flat_map(|spans| spans.spans).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute as JSON.
fn attribute(span: &Span, key: &str) -> serde_json::Value {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|attribute| attribute.value.as_ref()?.value.clone());
    match value {
        Some(value) => plain(&value),
        None => serde_json::Value::Null,
    }
}

fn plain(value: &Value) -> serde_json::Value {
    match value {
        Value::StringValue(text) => json!(text),
        Value::IntValue(number) => json!(number),
        Value::ArrayValue(list) => {
            list.values.iter().map(|value| plain(value.value.as_ref().expect("a value"))).collect()
        }
        other => panic!("no attribute is {other:?}"),
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn ask(address: SocketAddr, traceparent: &str, count: u32) {
    let body = json!({
        "messages": [{"role": "user", "content": "The secret word"}],
        "max_tokens": 5, "stream": true, "n": count,
    });
    let headers = [("traceparent", traceparent), ("tracestate", "vendor=abc")];
    let request = Exchange::begin(address, "POST /v1/chat/completions", &headers, &body.to_string());
    assert_eq!(request.finish().status, 200);
}

#[test]
fn a_request_is_a_span_of_its_callers_trace_with_waiting_prefill_and_decode() {
    let collector = Collector::start(&[]);
    let server = collector.server();
    ask(server.address(), PARENT, 1);
    // The end sends what waits.
    server.stop();
    let spans = collector.spans();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["POST /v1/chat/completions", "waiting", "prefill", "decode"]);
    let [request, waiting, prefill, decode] = &spans[..] else { panic!("{spans:?}") };
    for span in &spans {
        assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!((span.span_id.len(), span.trace_state.as_str()), (8, "vendor=abc"));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(request.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.end_time_unix_nano <= request.end_time_unix_nano);
    }
    // A server's span whose parent is remote, and its children.
    assert_eq!(
        (hex(&request.parent_span_id).as_str(), request.kind, request.flags),
        ("b7ad6b7169203331", 2, 0x301)
    );
    for child in [waiting, prefill, decode] {
        assert_eq!((&child.parent_span_id, child.kind), (&request.span_id, 1));
        assert_ne!(child.span_id, request.span_id);
    }
    assert_eq!(waiting.end_time_unix_nano, prefill.start_time_unix_nano);
    assert_eq!(prefill.end_time_unix_nano, decode.start_time_unix_nano);
    for (key, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!(200)),
        ("url.path", json!("/v1/chat/completions")),
        ("url.scheme", json!("http")),
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("girih")),
        ("gen_ai.request.model", json!("stories260k")),
        ("gen_ai.usage.output_tokens", json!(5)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
        ("error.type", json!(null)),
    ] {
        assert_eq!(attribute(request, key), value, "{key}");
    }
    let prompt = attribute(request, "gen_ai.usage.input_tokens");
    assert!(prompt.as_u64() > Some(3), "{prompt}");
    assert_eq!(attribute(prefill, "gen_ai.usage.input_tokens"), prompt);
    assert_eq!(attribute(decode, "gen_ai.usage.output_tokens"), json!(5));
    let resource = collector.requests()[0].resource_spans[0].resource.clone().expect("a resource");
    assert_eq!(
        plain(resource.attributes[0].value.as_ref().and_then(|value| value.value.as_ref()).expect("a name")),
        "girih"
    );
    let sent = format!("{:?}", collector.requests());
    assert!(!sent.contains("secret") && !sent.contains("Lily"), "{sent}");
}

#[test]
fn only_traces_that_the_caller_records_are_sent() {
    let collector = Collector::start(&[]);
    let server = collector.server();
    let address = server.address();
    ask(address, &PARENT.replace("-01", "-00"), 1);
    ask(address, "nonsense", 2);
    get(address, "/v1/nothing?secret");
    server.stop();
    let spans = collector.spans();
    let roots: Vec<&Span> = spans.iter().filter(|span| span.kind == 2).collect();
    let [chat, nothing] = &roots[..] else { panic!("{spans:?}") };
    assert!(chat.parent_span_id.is_empty() && chat.trace_state.is_empty(), "{chat:?}");
    assert_ne!(chat.trace_id, nothing.trace_id);
    assert_eq!(spans.len(), 2 + 2 * 3, "two replies have three spans each");
    assert_eq!((nothing.name.as_str(), attribute(nothing, "url.path")), ("GET", json!("/v1/nothing")));
    assert_eq!(attribute(nothing, "http.route"), json!(null));
    assert_eq!(attribute(nothing, "error.type"), json!("not_found"));
    assert!(nothing.status.is_none(), "a fault of the client is none of the server");
}

/// The value of `girih_spans_total` for this outcome, when it is not zero.
fn counted(address: SocketAddr, outcome: &str) -> u64 {
    let begun = Instant::now();
    loop {
        let text = get(address, "/metrics").body;
        let name = format!("girih_spans_total{{outcome=\"{outcome}\"}} ");
        if let Some(value) = text.lines().find_map(|line| line.strip_prefix(&name)) {
            return value.parse().expect("a number");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let busy = Collector::start(&[503]);
    let server = busy.server();
    ask(server.address(), PARENT, 1);
    assert!(counted(server.address(), "exported") >= 4);
    server.stop();
    let refusing = Collector::start(&[400]);
    let server = refusing.server();
    ask(server.address(), PARENT, 1);
    assert!(counted(server.address(), "dropped") >= 4);
    server.stop();
}

#[test]
fn a_collector_that_does_not_answer_delays_nobody() {
    // It accepts no connection, and one that does but says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_address = silent.local_addr().expect("an address");
    // The port of a connection is taken, and nobody listens on it.
    let closed = std::net::TcpStream::connect(silent_address).expect("it listens");
    for address in [closed.local_addr().expect("an address"), silent_address] {
        let collector = TraceCollector::at(&format!("http://{address}")).expect("a collector");
        let server =
            Server::start(ServeOptions { collector: Some(collector), ..options() }).expect("a server");
        let begun = Instant::now();
        // More than wait.
        for _ in 0..2600 {
            assert_eq!(get(server.address(), "/health").status, 200);
        }
        ask(server.address(), PARENT, 1);
        println!("requests took {:?}", begun.elapsed());
        assert!(counted(server.address(), "dropped") > 0);
        let ending = Instant::now();
        server.stop();
        assert!(ending.elapsed() < Duration::from_secs(5), "the end took {:?}", ending.elapsed());
    }
}
