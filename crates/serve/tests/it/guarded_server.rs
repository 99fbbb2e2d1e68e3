//! A guarded server with a few routes on a free port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::stream;
use girih_serve::access::{AccessRules, AllowedOrigins, ApiKeys, Hosts, PageToken};
use girih_serve::body_limits::BodyLimits;
use girih_serve::drain::Drain;
use girih_serve::guard::guarded;
use girih_serve::listener::{self, ListenerLimits, ListenerOptions};
use girih_serve::observe::{Metrics, Observer};
use tokio::net::TcpListener;

/// How a test's server differs from the usual one.
#[derive(Clone)]
pub struct Setup {
    pub options: ListenerOptions,
    pub keys: Option<&'static str>,
    pub body_time: Duration,
}

impl Default for Setup {
    fn default() -> Setup {
        let limits = ListenerLimits {
            headers: Duration::from_millis(600),
            idle: Duration::from_millis(1500),
            write_stall: Duration::from_millis(600),
            ..ListenerLimits::default()
        };
        let options = ListenerOptions { limits, tls: None };
        Setup { options, keys: None, body_time: Duration::from_secs(10) }
    }
}

/// A server that ends when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub drain: Drain,
    pub metrics: Arc<Metrics>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn start(setup: Setup) -> TestServer {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("an address");
        let hosts = Hosts::new(address, &[]).expect("hosts");
        let keys = setup.keys.map(|keys| ApiKeys::parse(keys.as_bytes()).expect("keys"));
        let page_token = PageToken::random().expect("random bytes");
        let origins = AllowedOrigins::default();
        let access = AccessRules { keys, page_token, hosts, origins, public: &["/"], replies_per_key: 8 };
        let mut bodies = BodyLimits::default();
        bodies.time = setup.body_time;
        let drain = Drain::default();
        let metrics = Arc::new(Metrics::new(None));
        let router = guarded(routes(), access, bodies, Observer::new(Arc::clone(&metrics)));
        let (options, ending) = (setup.options, drain.clone());
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let socket = TcpListener::from_std(socket).expect("a socket");
                listener::serve(socket, router, options, ending).await
            })
        });
        TestServer { address, drain, metrics, thread: Some(thread) }
    }
}

impl TestServer {
    /// Closes it and waits for the end.
    pub fn close(&mut self) {
        self.drain.close();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends");
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The routes of tests.
fn routes() -> Router {
    let length = |body: Bytes| async move { body.len().to_string() };
    Router::new()
        .route("/", get(|| async { "page" }))
        .route("/health", get(|| async { "{\"status\":\"ok\"}" }))
        .route("/v1/models", get(|| async { "models" }))
        .route("/v1/models/{name}", get(|| async { "model" }))
        .route("/length", post(length))
        .route("/panic", get(|| async { panic!("on purpose") as &'static str }))
        .route(
            "/endless",
            get(|| async { Body::from_stream(stream::repeat_with(|| Ok::<_, String>(vec![b'a'; 4096]))) }),
        )
        .route(
            "/minute",
            get(|| async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                "done"
            }),
        )
        .route(
            "/second",
            get(|| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                "done"
            }),
        )
}
