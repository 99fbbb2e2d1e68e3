//! Replies as streams: the events of a generation become the pieces of a body, one piece for all
//! events that are ready.

use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::generation::{Generation, GenerationEvent, TokenUsage};

/// A silent stream sends a ping after this time, so that nothing between client and server takes
/// it for dead.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The media type of server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// A server-sent event, as the description of the routes has it. The last one of OpenAI's older routes has
/// the data `[DONE]`.
#[derive(ToSchema)]
pub struct ServerSentEvent {
    /// Its type, if it has one.
    pub event: Option<String>,
    /// JSON, or `[DONE]`.
    pub data: String,
}

/// Writes events in the form of an API. What it writes to `out` is sent as it is.
pub trait EventWriter: Send + Unpin + 'static {
    /// The media type of the body.
    fn media_type(&self) -> &'static str {
        EVENT_STREAM
    }

    /// Writes an event.
    fn event(&mut self, event: GenerationEvent, generation: &Generation, out: &mut Vec<u8>);

    /// Writes the end, after the last event.
    fn end(&mut self, usage: TokenUsage, out: &mut Vec<u8>);

    /// Writes an error, after which nothing follows.
    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>);

    /// Writes what a client ignores.
    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }
}

/// Writes a server-sent event without a name.
pub fn write_data(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    write_json(out, data);
    out.extend_from_slice(b"\n\n");
}

/// Writes a server-sent event with a name.
pub fn write_named(out: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_data(out, data);
}

/// Writes JSON without line ends.
pub fn write_json(out: &mut Vec<u8>, data: &impl Serialize) {
    serde_json::to_writer(out, data).expect("strings, numbers and lists always serialize");
}

/// The reply whose body is the events of a generation. It is returned with the first of them, or when
/// the first ping is due.
///
/// # Errors
/// Those that come before that, such as that of a request that has waited too long.
pub async fn stream_response(
    mut generation: Generation,
    writer: impl EventWriter,
) -> Result<Response, ApiError> {
    let media_type = writer.media_type();
    let mut events = Vec::new();
    let first = poll_fn(|context| generation.poll_events(context, &mut events));
    if let Ok(Some(Err(error))) = timeout(PING_INTERVAL, first).await {
        return Err(error);
    }
    let body = EventStream {
        generation: Some(generation),
        writer,
        last_write: Instant::now(),
        ping: Box::pin(sleep_until(Instant::now() + PING_INTERVAL)),
        events,
    };
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx, which would collect a reply before it passes it on, not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct EventStream<W> {
    /// `None` when the last piece was sent.
    generation: Option<Generation>,
    writer: W,
    last_write: Instant,
    ping: Pin<Box<Sleep>>,
    /// Those that are to be written: none between calls, but some before the first.
    events: Vec<GenerationEvent>,
}

impl<W: EventWriter> Stream for EventStream<W> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        let Some(generation) = &mut stream.generation else { return Poll::Ready(None) };
        let mut out = Vec::new();
        // Events may write nothing, such as those of half a character.
        while out.is_empty() {
            if !stream.events.is_empty() {
                stream.events.drain(..).for_each(|event| stream.writer.event(event, generation, &mut out));
                continue;
            }
            match generation.poll_events(context, &mut stream.events) {
                Poll::Pending => {
                    if !stream.poll_ping(context, &mut out) {
                        return Poll::Pending;
                    }
                    break;
                }
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Ready(Some(Err(error))) => {
                    stream.writer.error(&error, &mut out);
                    stream.generation = None;
                    break;
                }
                Poll::Ready(None) => {
                    stream.writer.end(generation.usage(), &mut out);
                    stream.generation = None;
                    break;
                }
            }
        }
        stream.last_write = Instant::now();
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }
}

impl<W: EventWriter> EventStream<W> {
    /// Writes a ping if the stream was silent for long, else has the task woken then.
    fn poll_ping(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        // The timer is moved only when it has run out, not for each token.
        while self.ping.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let is_silent = now >= self.last_write + PING_INTERVAL;
            let next = if is_silent { now } else { self.last_write } + PING_INTERVAL;
            self.ping.as_mut().reset(next);
            if is_silent {
                self.writer.ping(out);
                return true;
            }
        }
        false
    }
}
