//! The server: its routes, its start, and its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Router, http::StatusCode};
use girih::tools::{Confinement, SandboxStates, can_limit_connections, confine};
use girih::{Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::access::{AccessRules, AllowedOrigins, Hosts, check_address};
use crate::api;
use crate::body_limits::BodyLimits;
use crate::error::{ApiError, Dialect};
use crate::guard::guarded;
use crate::kv_events::{EventSockets, KvEventsOptions};
use crate::listener::{self, ListenerOptions, tls};
use crate::observe::{AccessLog, Observer, TraceExporter};
use crate::openapi;
use crate::options::ServeOptions;
use crate::page;
use crate::parameters::name_without_effect;
use crate::state::{ServerPhase, ServerState};

/// How long cancelled requests have to tell their clients.
const CANCEL_TIME: Duration = Duration::from_secs(2);

/// The time between two looks for engines that have ended by a fault.
const RESTART_CHECK: Duration = Duration::from_millis(250);

/// How long the server waits for its listener, which ends soon after [`listener::CLOSING_TIME`].
const LISTENER_TIME: Duration = listener::CLOSING_TIME.saturating_add(Duration::from_millis(500));

/// How long the log may take to write its last lines.
const LOG_TIME: Duration = Duration::from_secs(1);

/// The router of all routes.
pub fn router(state: Arc<ServerState>) -> Router {
    Router::new()
        .merge(api::health::routes())
        .merge(api::metrics::routes())
        .merge(api::openai::routes())
        .merge(api::anthropic::routes())
        .merge(api::ollama::routes())
        .merge(api::girih::routes())
        .merge(openapi::routes())
        .merge(page::page(state.page_token.clone()))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(&state.parameters), name_without_effect))
        .layer(from_fn_with_state(Arc::clone(&state), refuse_when_draining))
        .with_state(state)
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    let shown: String = path.chars().take(100).collect();
    let message = format!("there is no route {shown:?}");
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message).response(Dialect::of_path(path))
}

async fn no_method(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("the route {path:?} has no method {}", request.method());
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    error.response(Dialect::of_path(path))
}

/// Refuses requests when the server ends, except those that ask how it is.
async fn refuse_when_draining(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if state.phase() != ServerPhase::Draining || api::health::PATHS.contains(&path) {
        return next.run(request).await;
    }
    ApiError::shutting_down().response(Dialect::of_path(path))
}

/// The signals that tell the process to end.
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Waits for one of the signals.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// A server at work on threads of its own.
pub struct Server {
    runtime: Runtime,
    state: Arc<ServerState>,
    address: SocketAddr,
    events_addresses: Option<(SocketAddr, Option<SocketAddr>)>,
    sandbox: SandboxStates,
    traces: Option<TraceExporter>,
    log: Option<AccessLog>,
    drain_delay: Duration,
    drain_timeout: Duration,
    unload_idle: Option<Duration>,
    unread_time: Duration,
    listener: JoinHandle<()>,
}

impl Server {
    /// Listens, loads the models as far as they fit into memory together, and returns when
    /// requests are served.
    ///
    /// # Errors
    /// As [`Server::listen`], and when a model that fits cannot be loaded.
    pub fn start(options: ServeOptions) -> Result<Server> {
        let server = Server::listen(options)?;
        server.state.models.load_all()?;
        server.begin();
        Ok(server)
    }

    /// Listens. Until the models are loaded ([`Server::load_until`]), requests wait, and `/ready` says
    /// so.
    ///
    /// # Errors
    /// When the address is taken, a model cannot be opened, or the kernel cannot confine the connections to
    /// a collector of traces.
    pub fn listen(mut options: ServeOptions) -> Result<Server> {
        let asked = SocketAddr::new(options.host, options.port);
        let keys = options.api_keys.clone();
        let origins = AllowedOrigins::new(&options.allowed_origins, keys.is_some())?;
        let tls = options.tls.as_ref();
        let tls = tls.map(|(certificates, key)| tls::load(certificates, key)).transpose()?;
        check_address(asked, keys.is_some() || options.is_known_to_be_open)?;
        let socket = listener::listen(asked).map_err(|error| unheard(asked, &error))?;
        let address = socket.local_addr().map_err(|error| failed("the address is unknown", &error))?;
        if let Some(events) = &mut options.kv_events {
            name_events(events, address)?;
        }
        let events = options.kv_events.as_ref().map(EventSockets::listen).transpose()?;
        // Before threads are started, as Landlock does not hold those that run already.
        let sandbox = confinement(&options)?.as_ref().map(confine).unwrap_or_default();
        if let Some(log) = &options.access_log {
            log.start()?;
        }
        let state = Arc::new(ServerState::new(&options)?);
        let runtime = Builder::new_multi_thread()
            .worker_threads(options.io_threads.max(1))
            .thread_name("girih-serve")
            .enable_all()
            .build()
            .map_err(|error| failed("the server's threads cannot be started", &error))?;
        let listener = on_runtime(socket, &runtime, asked)?;
        let events_addresses = events.map(|sockets| publish_events(sockets, &state, &runtime)).transpose()?;
        let access = AccessRules {
            keys,
            page_token: state.page_token.clone(),
            hosts: Hosts::new(address, &options.allowed_hosts)?,
            origins,
            public: &page::PATHS,
            replies_per_key: options.replies_per_key,
        };
        let traces = options.collector.clone().map(|collector| {
            let _entered = runtime.enter();
            let scheme = if tls.is_some() { "https" } else { "http" };
            TraceExporter::start(collector, scheme, Arc::clone(&state.metrics))
        });
        let observer = Observer {
            log: options.access_log.clone(),
            traces: traces.clone(),
            ..Observer::new(Arc::clone(&state.metrics))
        };
        let bodies = BodyLimits::with_images(options.image_body_bytes);
        let router = guarded(router(Arc::clone(&state)), access, bodies, observer);
        let listening = ListenerOptions { limits: options.limits, tls };
        let serving = listener::serve(listener, router, listening, state.drain.clone());
        let listener = runtime.spawn(serving);
        let ServeOptions { drain_delay, drain_timeout, unload_idle, unread_time, access_log: log, .. } =
            options;
        Ok(Server {
            runtime,
            state,
            address,
            events_addresses,
            sandbox,
            traces,
            log,
            drain_delay,
            drain_timeout,
            unload_idle,
            unread_time,
            listener,
        })
    }

    /// Loads the models as far as they fit into memory together, and returns the server when requests
    /// are served. If one of the signals comes first, the server ends, and the result is `None`; the
    /// thread that loads may go on for a while.
    ///
    /// # Errors
    /// When a model that fits cannot be loaded.
    pub fn load_until(self, signals: &mut EndSignals) -> Result<Option<Server>> {
        let state = Arc::clone(&self.state);
        let loaded = self.runtime.block_on(async {
            let loading = spawn_blocking(move || state.models.load_all());
            tokio::select! {
                biased;
                () = signals.recv() => None,
                loaded = loading => Some(loaded),
            }
        });
        let Some(loaded) = loaded else {
            Server { drain_delay: Duration::ZERO, drain_timeout: Duration::ZERO, ..self }.stop();
            return Ok(None);
        };
        loaded.map_err(|error| Error::new(format!("the models cannot be loaded: {error}")))??;
        self.begin();
        Ok(Some(self))
    }

    /// Serves requests, now that the models are loaded.
    fn begin(&self) {
        self.runtime.spawn(restart_engines(Arc::clone(&self.state)));
        self.runtime.spawn(unload_idle(Arc::clone(&self.state), self.unload_idle));
        self.runtime.spawn(drop_unread(Arc::clone(&self.state), self.unread_time));
        self.state.set_phase(ServerPhase::Ready);
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address at which events of the KV cache are published, and that at which they are sent again.
    pub fn kv_events_addresses(&self) -> Option<(SocketAddr, Option<SocketAddr>)> {
        self.events_addresses
    }

    /// The layers of the sandbox that were asked for; for each that is off, the reason.
    pub fn sandbox(&self) -> &SandboxStates {
        &self.sandbox
    }

    /// What its requests share.
    pub fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Catches the signals that tell the process to end, SIGINT and SIGTERM, from now on.
    ///
    /// # Errors
    /// When signals cannot be received.
    pub fn catch_signals(&self) -> Result<EndSignals> {
        let _entered = self.runtime.enter();
        let catch = |kind| signal(kind).map_err(|error| failed("signals cannot be received", &error));
        Ok(EndSignals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
        })
    }

    /// Serves until one of the signals comes, then stops.
    pub fn run_until(self, mut signals: EndSignals) {
        self.runtime.block_on(signals.recv());
        self.stop();
    }

    /// Says that it is not ready and serves new requests for the drain delay; then refuses them, waits for those that run, at most for the drain timeout, cancels the
    /// rest, lets connections write what they have for a moment, unloads the models, and waits for a
    /// moment until the log is written.
    pub fn stop(self) {
        let Server { runtime, state, traces, log, drain_delay, drain_timeout, listener, .. } = self;
        runtime.block_on(async {
            if !drain_delay.is_zero() {
                state.set_phase(ServerPhase::Leaving);
                sleep(drain_delay).await;
            }
            state.set_phase(ServerPhase::Draining);
            state.drain.until_idle(drain_timeout).await;
            state.cancel_all();
            state.drain.until_idle(CANCEL_TIME).await;
            state.drain.close();
            // A listener that has not ended by now is dropped.
            let _ = timeout(LISTENER_TIME, listener).await;
            if let Some(traces) = traces {
                traces.finish().await;
            }
        });
        runtime.shutdown_timeout(CANCEL_TIME);
        if let Some(log) = log {
            log.flush(LOG_TIME);
        }
    }
}

/// What the process may do; a collector of traces adds the connections to its port.
fn confinement(options: &ServeOptions) -> Result<Option<Confinement>> {
    let (Some(allowed), Some(collector)) = (&options.confinement, &options.collector) else {
        return Ok(options.confinement.clone());
    };
    if !can_limit_connections() {
        let sentence = "this kernel cannot limit the server's connections to the collector of traces; Linux 6.7 \
                        with Landlock can: drop the collector or the sandbox";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    Ok(Some(Confinement { connect: Some(collector.port()), ..allowed.clone() }))
}

/// Publishes events of the KV cache from now on, and returns the addresses.
fn publish_events(
    sockets: EventSockets,
    state: &ServerState,
    runtime: &Runtime,
) -> Result<(SocketAddr, Option<SocketAddr>)> {
    let unpublished = |error| failed("events of the KV cache cannot be published", &error);
    let addresses = sockets.addresses().map_err(unpublished)?;
    let events = state.models.kv_events().expect("the options of the models say that there are events");
    let _entered = runtime.enter();
    sockets.serve(events).map_err(unpublished)?;
    Ok(addresses)
}

/// A socket that listens at this address, on a runtime.
fn on_runtime(socket: std::net::TcpListener, runtime: &Runtime, address: SocketAddr) -> Result<TcpListener> {
    let _entered = runtime.enter();
    let listener = TcpListener::from_std(socket);
    listener.map_err(|error| unheard(address, &error))
}

/// Completes the name of the server in its events by its address.
///
/// # Errors
/// When other servers may have the same address.
fn name_events(events: &mut KvEventsOptions, address: SocketAddr) -> Result<()> {
    if events.pod.is_none() && address.ip().to_canonical().is_unspecified() {
        let sentence = format!(
            "events need the name of this server, as {address} is not its own: add --kv-events-pod NAME"
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    events.pod.get_or_insert_with(|| address.to_string());
    Ok(())
}

/// The error of an address that cannot be listened on.
fn unheard(address: SocketAddr, error: &io::Error) -> Error {
    failed(&format!("{address} cannot be listened on"), error)
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{what}: {error}"))
}

/// Starts engines again that have ended by a fault, when their pause is over. It does not wait for a request, as none
/// comes while `/ready` says that the server is not ready.
async fn restart_engines(state: Arc<ServerState>) {
    loop {
        sleep(RESTART_CHECK).await;
        if !state.models.down().is_empty() && state.phase() == ServerPhase::Ready {
            let _loading = state.models.loading.lock().await;
            let state = Arc::clone(&state);
            // Planning takes time. A panic leaves the model as it was.
            let _ = spawn_blocking(move || state.models.restart_engines()).await;
        }
    }
}

/// The maximum time between two looks for models to unload.
const MAX_IDLE_PAUSE: Duration = Duration::from_secs(1);

/// Unloads models that were not used for their time, again and again.
async fn unload_idle(state: Arc<ServerState>, idle: Option<Duration>) {
    // A request may ask for a shorter time.
    let pause = idle.map_or(MAX_IDLE_PAUSE, |idle| idle / 4);
    let pause = pause.clamp(Duration::from_millis(100), MAX_IDLE_PAUSE);
    loop {
        sleep(pause).await;
        if !state.models.has_idle_times() {
            continue;
        }
        let state = Arc::clone(&state);
        // Ending an engine's thread takes time.
        let _ = spawn_blocking(move || state.models.unload_idle()).await;
    }
}

/// Drops replies that were complete this long ago but were not read, again and again.
async fn drop_unread(state: Arc<ServerState>, time: Duration) {
    let pause = (time / 4).clamp(Duration::from_millis(10), Duration::from_secs(5));
    loop {
        sleep(pause).await;
        state.drop_unread(time);
    }
}
