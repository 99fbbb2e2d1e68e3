//! Reads the bodies of requests within limits on size, time, nesting and number of values, and of all
//! bodies together, before their routes see them.
//!
//! Bodies with images may be larger than others. What is beyond [`MAX_TEXT_BYTES`] comes from a room of its own, so
//! that requests with images keep no others out, and takes it three times: a body is copied while it is read
//! (`json_body`, which also checks that only the images are so large). Few large bodies wait for that room, as each of
//! them has text in memory, and a slow one leaves it to those that wait.

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
use crate::body_room::BodyRoom;
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

/// The maximum number of large bodies that wait for room: each has up to [`MAX_TEXT_BYTES`] in memory.
const LARGE_BODIES_WAITING: usize = 8;

/// The bytes for each second at which a body with room for large ones must arrive while another waits for room.
const LARGE_BYTES_PER_SECOND: u64 = 1 << 20;

/// A larger body is checked on a thread that serves no connections.
const CHECKED_AT_ONCE_BYTES: usize = 1 << 20;

/// The routes whose requests may have images.
const IMAGE_PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/chat/completions/render",
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
    /// The places of large bodies that wait for room.
    places_to_wait: Arc<Semaphore>,
    /// For how long a body with room for large ones may be slow while another waits.
    grace: Duration,
}

impl Default for BodyLimits {
    /// 4 MB, with images 64 MB, in 30 s, and a second more for each 64 KiB; 256 MiB together, and 512 MiB for what is
    /// beyond 4 MB in each.
    fn default() -> BodyLimits {
        BodyLimits::with_images(MAX_IMAGE_BODY_BYTES)
    }
}

/// What has arrived of a body.
struct ArrivingBody {
    bytes: BytesMut,
    room: BodyRoom,
    /// When it began, later by the time for which it could not be sent.
    begun: Instant,
    /// When it got room for large ones, and the bytes that had arrived.
    large: Option<(Instant, usize)>,
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
            places_to_wait: Arc::new(Semaphore::new(LARGE_BODIES_WAITING)),
            grace: Duration::from_secs(10),
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
        let (bytes, room) = (BytesMut::new(), BodyRoom::default());
        let mut arriving = ArrivingBody { bytes, room, begun: Instant::now(), large: None };
        while let Some(data) = self.data(request.body_mut(), &arriving).await? {
            if data.len() > max - arriving.bytes.len() {
                return Err(too_large(max));
            }
            self.make_room(&mut arriving, data.len(), largest).await?;
            arriving.bytes.extend_from_slice(&data);
        }
        Ok((arriving.bytes, arriving.room))
    }

    /// The next piece of a body; `None` at its end.
    async fn data(&self, body: &mut Body, arriving: &ArrivingBody) -> Result<Option<Bytes>, ApiError> {
        let deadline = arriving.deadline(self);
        loop {
            if self.is_in_the_way(arriving) {
                return Err(in_the_way());
            }
            let now = Instant::now();
            // Another may begin to wait.
            let look = if arriving.large.is_some() { deadline.min(now + self.grace / 8) } else { deadline };
            let frame = match timeout_at(look, body.frame()).await {
                Err(_) if look == deadline => return Err(too_slow()),
                Err(_) => continue,
                Ok(frame) => frame,
            };
            let Some(frame) = frame else { return Ok(None) };
            // Trailers mean nothing here.
            if let Ok(data) = frame.map_err(|_| broken())?.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Whether a body with room for large ones arrives too slowly while another waits for room.
    fn is_in_the_way(&self, arriving: &ArrivingBody) -> bool {
        let Some((since, before)) = arriving.large else { return false };
        let earned = (arriving.bytes.len() - before) as u64 / LARGE_BYTES_PER_SECOND;
        let is_slow = since.elapsed() > self.grace + Duration::from_secs(earned);
        is_slow && self.places_to_wait.available_permits() < LARGE_BODIES_WAITING
    }

    /// Takes room for `more` bytes of a body of at most `largest`.
    async fn make_room(
        &self,
        arriving: &mut ArrivingBody,
        more: usize,
        largest: usize,
    ) -> Result<(), ApiError> {
        let (before, after) = (arriving.bytes.len(), arriving.bytes.len() + more);
        if after > MAX_TEXT_BYTES && arriving.large.is_none() {
            let waits = Instant::now();
            arriving.room.large = Some(self.room_for_large(largest).await?);
            arriving.large = Some((Instant::now(), before));
            // The client could not send meanwhile.
            arriving.begun += waits.elapsed();
        }
        let kib_of_text = |bytes: usize| bytes.min(MAX_TEXT_BYTES).div_ceil(1 << 10);
        let more = self.room_for_text(kib_of_text(after) - kib_of_text(before))?;
        match &mut arriving.room.text {
            Some(text) => text.merge(more),
            None => arriving.room.text = Some(more),
        }
        Ok(())
    }

    fn room_for_text(&self, kib: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(kib).map_err(|_| full())?;
        Arc::clone(&self.left).try_acquire_many_owned(kib).map_err(|_| full())
    }

    /// The room for what is beyond [`MAX_TEXT_BYTES`] in a body of at most `bytes`, all at once: of two that had a part
    /// each, none might get the rest. It waits until others have left it, unless many wait.
    async fn room_for_large(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let beyond = bytes.saturating_sub(MAX_TEXT_BYTES).saturating_mul(COPIES);
        let kib = u32::try_from(beyond >> 10).map_err(|_| full())?;
        if let Ok(room) = Arc::clone(&self.left_for_large).try_acquire_many_owned(kib) {
            return Ok(room);
        }
        let _waits = self.places_to_wait.try_acquire().map_err(|_| many_wait())?;
        let room = timeout(self.time, Arc::clone(&self.left_for_large).acquire_many_owned(kib)).await;
        room.ok().and_then(Result::ok).ok_or_else(full)
    }
}

impl ArrivingBody {
    /// When the next piece must be there.
    fn deadline(&self, limits: &BodyLimits) -> Instant {
        self.begun + limits.time + Duration::from_secs(self.bytes.len() as u64 / limits.bytes_per_second)
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
        Ok((bytes, room)) => room.scope(next.run(request.map(|_| Body::from(bytes)))).await,
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

fn in_the_way() -> ApiError {
    let message = "the body arrived at less than 1 MiB/s while another one waited for its room; send it faster or smaller";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
}

fn broken() -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        "invalid_body",
        "the body ended early or is not what its headers say",
    )
}

fn full() -> ApiError {
    overloaded("the server holds as many bytes of requests as it may; try again later".to_owned())
}

fn many_wait() -> ApiError {
    let message = format!(
        "{LARGE_BODIES_WAITING} bodies of more than {MAX_TEXT_BYTES} bytes wait already, the maximum; try again later"
    );
    overloaded(message)
}

fn overloaded(message: String) -> ApiError {
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
    ApiError { retry_after: Some(1), ..error }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::DefaultBodyLimit;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use futures_util::StreamExt;
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
            time: Duration::from_secs(2),
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

    /// Limits with room for what is beyond [`MAX_TEXT_BYTES`] in one body of [`LARGE`] bytes.
    fn room_for_one() -> BodyLimits {
        BodyLimits {
            left_for_large: Arc::new(Semaphore::new(100 * COPIES)),
            grace: Duration::from_millis(80),
            ..BodyLimits::with_images(LARGE)
        }
    }

    /// The bytes of a large body.
    const LARGE: usize = MAX_TEXT_BYTES + (100 << 10);

    /// Waits until a large body has room.
    async fn until_taken(limits: &BodyLimits) {
        while limits.left_for_large.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// A body whose last byte does not arrive.
    fn endless() -> Body {
        let first = Ok::<_, std::io::Error>(Bytes::from(vec![b' '; LARGE - 1]));
        Body::from_stream(futures_util::stream::once(async { first }).chain(futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn a_slow_large_body_leaves_its_room_to_one_that_waits() {
        let limits = room_for_one();
        let router = answering(limits.clone(), &Arc::new(Semaphore::new(1)));
        let request = Request::post("/v1/messages").body(endless()).expect("a request");
        let slow = tokio::spawn(router.clone().oneshot(request));
        until_taken(&limits).await;
        tokio::time::sleep(limits.grace * 2).await;
        assert!(!slow.is_finished(), "nobody waits");
        assert_eq!(status(&router, "/v1/messages", LARGE).await, 200);
        let slow = slow.await.expect("a task").expect("an answer");
        assert_eq!(slow.status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(limits.left_for_large.available_permits(), 100 * COPIES);
    }

    #[tokio::test]
    async fn few_large_bodies_wait() {
        let limits = BodyLimits { places_to_wait: Arc::new(Semaphore::new(1)), ..room_for_one() };
        let may_answer = Arc::new(Semaphore::new(0));
        let router = answering(limits.clone(), &may_answer);
        let send = || {
            let router = router.clone();
            tokio::spawn(async move { status(&router, "/v1/messages", LARGE).await })
        };
        let first = send();
        until_taken(&limits).await;
        let second = send();
        while limits.places_to_wait.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(send().await.expect("an answer"), 503, "at once");
        may_answer.add_permits(2);
        assert_eq!((first.await.expect("an answer"), second.await.expect("an answer")), (200, 200));
    }

    #[tokio::test]
    async fn a_client_that_leaves_frees_no_room_of_work_that_goes_on() {
        let limits = room_for_one();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let has_begun = Arc::new(tokio::sync::Notify::new());
        let begins = Arc::clone(&has_begun);
        let work = move |_: Bytes| async move {
            let work = move || {
                begins.notify_one();
                Ok(ended.lock().expect("one thread").recv().is_ok())
            };
            in_background(work).await.is_ok().to_string()
        };
        let router = Router::new().route("/v1/messages", post(work)).layer(DefaultBodyLimit::disable());
        let router = router.layer(from_fn_with_state(limits.clone(), limit_body));
        let client = tokio::spawn(async move { status(&router, "/v1/messages", LARGE).await });
        has_begun.notified().await;
        client.abort();
        assert!(client.await.expect_err("it has left").is_cancelled());
        assert_eq!(limits.left_for_large.available_permits(), 0);
        end.send(()).expect("the work waits");
        while limits.left_for_large.available_permits() < 100 * COPIES {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(limits.left.available_permits(), 256 << 10);
    }

    /// A reply may outlast its body by far.
    #[tokio::test]
    async fn the_room_of_a_request_without_its_body_is_free() {
        let limits = room_for_one();
        let left = Arc::clone(&limits.left_for_large);
        let answer = move |body: Bytes| async move {
            let before = left.available_permits();
            drop(body);
            BodyRoom::free_current();
            format!("{before} {}", left.available_permits())
        };
        let router = Router::new().route("/v1/messages", post(answer)).layer(DefaultBodyLimit::disable());
        let router = router.layer(from_fn_with_state(limits, limit_body));
        let request = Request::post("/v1/messages").body(Body::from(vec![b' '; LARGE])).expect("a request");
        let answer = router.oneshot(request).await.expect("an answer").into_body();
        let text = answer.collect().await.expect("a body").to_bytes();
        assert_eq!(text, format!("0 {}", 100 * COPIES));
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
