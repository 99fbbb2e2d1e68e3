//! One connection: requests in, responses out, until a side ends it or a limit is exceeded.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tower::Service;

use super::clock::{ConnectionClock, Expiry};
use super::limits::ListenerLimits;
use super::places::ConnectionPlace;
use super::stream::{ClientSide, SharedStream, TimedStream};
use crate::drain::{CountedRequest, Drain};
use crate::error::{ApiError, Dialect};

/// The bytes of a request that are read and thrown away after its response, so that a client that
/// first sends everything learns why it was refused: more than any body that is worth sending.
const MAX_DISCARDED_BYTES: u64 = 128 << 20;

/// The time between two looks at a client whose request is being answered.
const CLIENT_CHECK: Duration = Duration::from_millis(250);

/// The response to headers that did not arrive in time.
const HEADERS_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves the requests of one connection.
pub async fn serve_connection<S>(
    stream: S,
    router: Router,
    limits: ListenerLimits,
    drain: Drain,
    place: ConnectionPlace,
) where
    S: AsyncRead + AsyncWrite + ClientSide + Unpin + Send + 'static,
{
    let clock = Arc::clone(&place.clock);
    let mut closing = pin!(drain.closing());
    let service = {
        let clock = Arc::clone(&clock);
        service_fn(move |request| respond(request, router.clone(), Arc::clone(&clock), drain.clone()).boxed())
    };
    let stream = SharedStream::new(stream);
    let mut connection = http1::Builder::new()
        .max_headers(limits.header_count)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes)
        // The clock has a limit of its own.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(TimedStream::new(&stream, Arc::clone(&clock))), service);
    let mut is_closing = false;
    let expiry = loop {
        tokio::select! {
            _ = std::future::poll_fn(|context| connection.poll_without_shutdown(context)) => break None,
            expiry = clock.expired() => break Some(expiry),
            () = client_left(&stream, &clock) => break Some(Expiry::Left),
            () = &mut closing, if !is_closing => {
                is_closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    drop(connection.into_parts());
    if let Some(stream) = stream.into_inner() {
        end(stream, expiry, &clock).await;
    }
}

/// Waits until the client has closed its side while its request is answered. Hyper does not see that
/// when it holds bytes of a next request. It has to be so twice: the last bytes of a request may come
/// with the end.
async fn client_left<S: ClientSide>(stream: &SharedStream<S>, clock: &ConnectionClock) {
    let mut was_closed = false;
    loop {
        sleep(CLIENT_CHECK).await;
        let is_closed = clock.is_answering() && stream.lock().is_closed();
        if is_closed && was_closed {
            return;
        }
        was_closed = is_closed;
    }
}

/// Ends a connection. Without the wait for the client's end, unread bytes of it would make the
/// system discard the response. The wait ends at once when another connection needs the place.
async fn end<S>(mut stream: S, expiry: Option<Expiry>, clock: &ConnectionClock)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    clock.begin_linger();
    let farewell = async {
        match expiry {
            Some(Expiry::Headers) => stream.write_all(HEADERS_TIMEOUT).await?,
            // Nobody waits for an answer, or nobody reads it.
            Some(Expiry::Idle | Expiry::Displaced | Expiry::Write | Expiry::Left) => return Ok(()),
            None => {}
        }
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await?;
        Ok::<(), std::io::Error>(())
    };
    tokio::select! {
        // The client may be gone.
        _ = timeout(clock.linger(), farewell) => {}
        () = clock.displaced() => {}
    }
}

/// Answers one request. A panic of a handler is an error of its request only.
async fn respond(
    request: Request<Incoming>,
    mut router: Router,
    clock: Arc<ConnectionClock>,
    drain: Drain,
) -> Result<Response<CountedBody>, Infallible> {
    let fault = clock.begin_response();
    let counted = Some(drain.count_request());
    if let Some(message) = fault {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message);
        let mut response = error.response(Dialect::of_path(request.uri().path()));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(response.map(|body| CountedBody { body, clock, counted }));
    }
    let handled = AssertUnwindSafe(router.call(request.map(Body::new))).catch_unwind().await;
    let response = handled.unwrap_or_else(|_| {
        let body = "the server failed to answer this request; its standard error says why\n";
        Ok(Response::builder()
            .status(StatusCode::INTERNAL_SERVER_ERROR)
            .body(Body::from(body))
            .expect("the status is valid"))
    });
    let response = match response {
        Ok(response) => response,
        Err(never) => match never {},
    };
    Ok(response.map(|body| CountedBody { body, clock, counted }))
}

/// The body of a response. The request counts until its last bytes are written.
struct CountedBody {
    body: Body,
    clock: Arc<ConnectionClock>,
    counted: Option<CountedRequest>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.clock.set_more(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.clock.end_response(self.counted.take());
    }
}
