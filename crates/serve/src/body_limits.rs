//! Reads the bodies of requests within limits on size, time, nesting and number of values, and of all
//! bodies together, before their routes see them.
//!
//! Bodies with images may be larger than others. What is beyond [`MAX_TEXT_BYTES`] comes from a room of its own, so
//! that requests with images keep no others out, and takes it three times: a body is copied while it is read
//! (`json_body`, which also checks that only the images are so large).

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::background::in_background;
use crate::error::{ApiError, Dialect};
use crate::observe::RequestRecord;

/// The nesting that `serde_json` reads.
const MAX_JSON_DEPTH: usize = 127;

/// The maximum number of values in a body: each takes about 72 bytes when it is read.
const MAX_JSON_VALUES: usize = 1_000_000;

/// The maximum bytes of a body without its images.
pub const MAX_TEXT_BYTES: usize = 4_000_000;

/// The default of `BodyLimits::image_bytes`.
pub const MAX_IMAGE_BODY_BYTES: usize = 64_000_000;

/// What the parts of bodies beyond [`MAX_TEXT_BYTES`] may take in memory together, or three times the maximum if that
/// is more.
const LARGE_BODIES_BYTES: usize = 512 << 20;

/// How many times a large body is in memory while it is read: as bytes, as JSON, and as a request.
const COPIES: usize = 3;

/// A larger body is checked on a thread that serves no connections.
const CHECKED_AT_ONCE_BYTES: usize = 1 << 20;

/// The routes whose requests may have images.
const IMAGE_PATHS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/api/chat",
    "/api/generate",
];

/// The limits on the bodies of requests.
#[derive(Clone)]
pub struct BodyLimits {
    /// The maximum bytes of a body with images, on the routes that take them; at least [`MAX_TEXT_BYTES`], which is the
    /// maximum of the others.
    image_bytes: usize,
    /// The time in which a body must arrive.
    pub time: Duration,
    /// The bytes for which a second is added to that time.
    pub bytes_per_second: u64,
    /// What is left of the bytes that all bodies may have together, in KiB.
    left: Arc<Semaphore>,
    /// The same of what is beyond [`MAX_TEXT_BYTES`] in each, with its copies.
    left_for_large: Arc<Semaphore>,
}

impl Default for BodyLimits {
    /// 4 MB, with images 64 MB, in 30 s, and a second more for each 64 KiB; 256 MiB together, and 512 MiB for what is
    /// beyond 4 MB in each.
    fn default() -> BodyLimits {
        BodyLimits::with_images(MAX_IMAGE_BODY_BYTES)
    }
}

/// What a body takes of the memory of all bodies, until it is dropped.
#[derive(Default)]
struct BodyRoom {
    text: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl BodyLimits {
    /// The default limits, but for the bytes of a body with images.
    pub fn with_images(image_bytes: usize) -> BodyLimits {
        let image_bytes = image_bytes.max(MAX_TEXT_BYTES);
        let large = LARGE_BODIES_BYTES.max(image_bytes.saturating_mul(COPIES));
        BodyLimits {
            image_bytes,
            time: Duration::from_secs(30),
            bytes_per_second: 64 << 10,
            left: Arc::new(Semaphore::new(256 << 10)),
            left_for_large: Arc::new(Semaphore::new((large >> 10).min(Semaphore::MAX_PERMITS))),
        }
    }

    /// The maximum bytes of a body to this path.
    fn max_of(&self, path: &str) -> usize {
        if IMAGE_PATHS.contains(&path) { self.image_bytes } else { MAX_TEXT_BYTES }
    }

    /// Reads a body; the room counts its bytes.
    async fn read(&self, request: &mut Request) -> Result<(BytesMut, BodyRoom), ApiError> {
        let max = self.max_of(request.uri().path());
        let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|length| length.parse::<u64>().ok());
        if declared.is_some_and(|length| length > max as u64) {
            return Err(too_large(max));
        }
        let largest = declared.map_or(max, |length| length as usize);
        let mut room = BodyRoom::default();
        let (mut bytes, mut begun) = (BytesMut::new(), Instant::now());
        loop {
            let earned = Duration::from_secs(bytes.len() as u64 / self.bytes_per_second);
            let deadline = begun + self.time + earned;
            let frame = timeout_at(deadline, request.body_mut().frame()).await.map_err(|_| too_slow())?;
            let Some(frame) = frame else { return Ok((bytes, room)) };
            // Trailers mean nothing here.
            let Ok(data) = frame.map_err(|_| broken())?.into_data() else { continue };
            if data.len() > max - bytes.len() {
                return Err(too_large(max));
            }
            let grown = bytes.len() + data.len();
            if grown > MAX_TEXT_BYTES && room.large.is_none() {
                let waits = Instant::now();
                room.large = Some(self.room_for_large(largest).await?);
                // The client could not send meanwhile.
                begun += waits.elapsed();
            }
            let kib_of_text = |bytes: usize| bytes.min(MAX_TEXT_BYTES).div_ceil(1 << 10);
            let more = self.room_for_text(kib_of_text(grown) - kib_of_text(bytes.len()))?;
            match &mut room.text {
                Some(text) => text.merge(more),
                None => room.text = Some(more),
            }
            bytes.extend_from_slice(&data);
        }
    }

    fn room_for_text(&self, kib: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(kib).map_err(|_| full())?;
        Arc::clone(&self.left).try_acquire_many_owned(kib).map_err(|_| full())
    }

    /// The room for what is beyond [`MAX_TEXT_BYTES`] in a body of at most `bytes`, all at once: of two that had a part
    /// each, none might get the rest. It waits until others have left it.
    async fn room_for_large(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let beyond = bytes.saturating_sub(MAX_TEXT_BYTES).saturating_mul(COPIES);
        let kib = u32::try_from(beyond >> 10).map_err(|_| full())?;
        let room = timeout(self.time, Arc::clone(&self.left_for_large).acquire_many_owned(kib)).await;
        room.ok().and_then(Result::ok).ok_or_else(full)
    }
}

/// Passes a request on with its whole body.
pub async fn limit_body(State(limits): State<BodyLimits>, mut request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    if let Err(error) = check_coding(request.headers()) {
        return error.response(Dialect::of_path(request.uri().path()));
    }
    let read = checked_body(&limits, &mut request).await;
    match read {
        Ok((bytes, _room)) => next.run(request.map(|_| Body::from(bytes))).await,
        Err(error) => error.response(Dialect::of_path(request.uri().path())),
    }
}

/// Reads a body and checks that it can be read as JSON.
async fn checked_body(limits: &BodyLimits, request: &mut Request) -> Result<(Bytes, BodyRoom), ApiError> {
    let (bytes, room) = limits.read(request).await?;
    if let Some(record) = RequestRecord::current() {
        record.note_body(&bytes);
    }
    let bytes = bytes.freeze();
    if bytes.len() <= CHECKED_AT_ONCE_BYTES {
        check_json(&bytes)?;
        return Ok((bytes, room));
    }
    // With its room, which a client that leaves does not free before.
    in_background(move || check_json(&bytes).map(|()| (bytes, room))).await
}

/// Refuses a body that is compressed, as its headers say (RFC 9110, section 15.5.16).
fn check_coding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(is_identity) {
        return Ok(());
    }
    let message = "the body has a Content-Encoding; send it without, as bodies are not decompressed";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Refuses JSON that nests too deeply or has too many values. Text that is no JSON passes; its route
/// refuses it.
fn check_json(json: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    // Each value but the first follows a comma or the bracket that opens its list or object.
    let mut values = 1_usize;
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b'[' | b'{' if !is_in_string => (depth, values) = (depth + 1, values + 1),
            b',' if !is_in_string => values += 1,
            b']' | b'}' if !is_in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            let message = format!("the body's JSON nests deeper than {MAX_JSON_DEPTH} levels; nest it less");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "json_too_deep", message));
        }
        if values > MAX_JSON_VALUES {
            let message = format!("the body's JSON has more than {MAX_JSON_VALUES} values; send fewer");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "json_too_large", message));
        }
    }
    Ok(())
}

fn too_large(max: usize) -> ApiError {
    let message = format!("the body has more than {max} bytes, the maximum; send less");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn too_slow() -> ApiError {
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        "body_timeout",
        "the body did not arrive in time; send it faster",
    )
}

fn broken() -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "invalid_body",
        "the body ended early or is not what its headers say",
    )
}

fn full() -> ApiError {
    let message = "the server holds as many bytes of requests as it may; try again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
    ApiError { retry_after: Some(1), ..error }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::DefaultBodyLimit;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use tower::ServiceExt;

    use super::*;

    #[test]
    fn json_may_nest_as_deep_as_it_can_be_read() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (depth, is_allowed) in [(1, true), (127, true), (128, false), (100_000, false)] {
            let json = nested(depth);
            assert_eq!(check_json(json.as_bytes()).is_ok(), is_allowed, "{depth}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), is_allowed, "{depth}");
        }
        let text = format!(r#"{{"a": "\"{}", "b": [{{}}]}}"#, "[".repeat(1000));
        assert!(check_json(text.as_bytes()).is_ok());
        assert!(check_json("[]".repeat(1000).as_bytes()).is_ok());
        let hidden = format!(r#"{{"a": "\\", "b": {}"#, "{".repeat(200));
        assert!(check_json(hidden.as_bytes()).is_err());
    }

    /// A router whose routes answer with the length of the body, when they may.
    fn answering(limits: BodyLimits, may_answer: &Arc<Semaphore>) -> Router {
        let may_answer = Arc::clone(may_answer);
        let length = |body: Bytes| async move {
            let _turn = may_answer.acquire().await.expect("it is never closed");
            body.len().to_string()
        };
        let router = Router::new().route("/v1/messages", post(length.clone())).route("/other", post(length));
        router.layer(DefaultBodyLimit::disable()).layer(from_fn_with_state(limits, limit_body))
    }

    async fn status(router: &Router, path: &str, bytes: usize) -> u16 {
        let body = format!("\"{}\"", "a".repeat(bytes - 2));
        let request = Request::post(path).body(Body::from(body)).expect("a request");
        router.clone().oneshot(request).await.expect("an answer").status().as_u16()
    }

    #[tokio::test]
    async fn only_routes_with_images_take_large_bodies() {
        let router = answering(BodyLimits::with_images(5_000_000), &Arc::new(Semaphore::new(1)));
        for (path, bytes, expected) in [
            ("/v1/messages", 5_000_000, 200),
            ("/v1/messages", 5_000_001, 413),
            ("/other", MAX_TEXT_BYTES, 200),
            ("/other", MAX_TEXT_BYTES + 1, 413),
        ] {
            assert_eq!(status(&router, path, bytes).await, expected, "{path} {bytes}");
        }
        let router = answering(BodyLimits::with_images(0), &Arc::new(Semaphore::new(1)));
        assert_eq!(status(&router, "/v1/messages", MAX_TEXT_BYTES).await, 200, "--no-images");
        assert_eq!(status(&router, "/v1/messages", MAX_TEXT_BYTES + 1).await, 413);
    }

    /// Large bodies wait for each other, and others pass beside them.
    #[tokio::test]
    async fn large_bodies_have_a_room_of_their_own() {
        let bytes = MAX_TEXT_BYTES + (100 << 10);
        let limits = BodyLimits {
            time: Duration::from_millis(200),
            // For two of them.
            left_for_large: Arc::new(Semaphore::new(2 * 100 * COPIES + 1)),
            ..BodyLimits::with_images(bytes)
        };
        let may_answer = Arc::new(Semaphore::new(0));
        let router = answering(limits.clone(), &may_answer);
        let send = |path: &'static str, bytes| {
            let router = router.clone();
            tokio::spawn(async move { status(&router, path, bytes).await })
        };
        let first = [send("/v1/messages", bytes), send("/v1/messages", bytes)];
        while limits.left_for_large.available_permits() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(send("/v1/messages", bytes).await.expect("an answer"), 503, "after its time");
        let small = send("/v1/messages", MAX_TEXT_BYTES);
        let waiting = send("/v1/messages", bytes);
        may_answer.add_permits(4);
        for answer in first.into_iter().chain([small, waiting]) {
            assert_eq!(answer.await.expect("an answer"), 200);
        }
        assert_eq!(limits.left_for_large.available_permits(), 2 * 100 * COPIES + 1);
        assert_eq!(limits.left.available_permits(), 256 << 10);
    }

    #[test]
    fn json_may_have_a_million_values() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 2));
        assert!(check_json(list(MAX_JSON_VALUES).as_bytes()).is_ok());
        for many in [list(MAX_JSON_VALUES + 1), "[],".repeat(500_000), "{},".repeat(500_000)] {
            assert_eq!(check_json(many.as_bytes()).expect_err("too many").code, "json_too_large");
        }
        let text = format!("\"{}\"", ",[{".repeat(1_000_000));
        assert!(check_json(text.as_bytes()).is_ok());
    }
}
