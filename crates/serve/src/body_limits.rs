//! Reads the bodies of requests within limits on size, time, nesting and number of values, and of all
//! bodies together, before their routes see them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use bytes::BytesMut;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::{ApiError, Dialect};
use crate::observe::RequestRecord;

/// The nesting that `serde_json` reads.
const MAX_JSON_DEPTH: usize = 127;

/// The maximum number of values in a body: each takes about 72 bytes when it is read.
const MAX_JSON_VALUES: usize = 1_000_000;

/// The limits on the bodies of requests.
#[derive(Clone)]
pub struct BodyLimits {
    /// The maximum bytes of a body.
    pub bytes: usize,
    /// The time in which a body must arrive.
    pub time: Duration,
    /// The bytes for which a second is added to that time.
    pub bytes_per_second: u64,
    /// What is left of the bytes that all bodies may have together, in KiB.
    left: Arc<Semaphore>,
}

impl Default for BodyLimits {
    /// 4 MB in 30 s, and a second more for each 64 KiB; 256 MiB together.
    fn default() -> BodyLimits {
        BodyLimits {
            bytes: 4_000_000,
            time: Duration::from_secs(30),
            bytes_per_second: 64 << 10,
            left: Arc::new(Semaphore::new(256 << 10)),
        }
    }
}

impl BodyLimits {
    /// Reads a body; the permit counts its bytes.
    async fn read(&self, request: &mut Request) -> Result<(BytesMut, OwnedSemaphorePermit), ApiError> {
        let max = self.bytes;
        let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if declared.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > max as u64) {
            return Err(too_large(max));
        }
        let mut permit = self.permit(0)?;
        let (mut bytes, begun) = (BytesMut::new(), Instant::now());
        loop {
            let earned = Duration::from_secs(bytes.len() as u64 / self.bytes_per_second);
            let deadline = begun + self.time + earned;
            let frame = timeout_at(deadline, request.body_mut().frame()).await.map_err(|_| too_slow())?;
            let Some(frame) = frame else { return Ok((bytes, permit)) };
            // Trailers mean nothing here.
            let Ok(data) = frame.map_err(|_| broken())?.into_data() else { continue };
            if data.len() > max - bytes.len() {
                return Err(too_large(max));
            }
            let grown = (bytes.len() + data.len()).div_ceil(1 << 10);
            permit.merge(self.permit(grown - bytes.len().div_ceil(1 << 10))?);
            bytes.extend_from_slice(&data);
        }
    }

    fn permit(&self, kib: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let kib = u32::try_from(kib).map_err(|_| full())?;
        Arc::clone(&self.left).try_acquire_many_owned(kib).map_err(|_| full())
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
    let read = limits.read(&mut request).await.and_then(|(bytes, permit)| {
        if let Some(record) = RequestRecord::current() {
            record.note_body(&bytes);
        }
        check_json(&bytes)?;
        Ok((bytes.freeze(), permit))
    });
    match read {
        Ok((bytes, _permit)) => next.run(request.map(|_| Body::from(bytes))).await,
        Err(error) => error.response(Dialect::of_path(request.uri().path())),
    }
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
