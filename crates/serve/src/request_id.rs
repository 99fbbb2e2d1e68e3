//! The id of a request: the client's `x-request-id`, or a new one.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The maximum length of a client's id in bytes.
const MAX_BYTES: usize = 128;

/// The id of a request, which is in its reply's headers, in logs and in the ids of its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequestId(pub Arc<str>);

impl HttpRequestId {
    /// The client's id if it is printable ASCII of at most 128 bytes, else a new one.
    fn of(headers: &HeaderMap) -> HttpRequestId {
        let given = headers.get(&HEADER).and_then(|value| value.to_str().ok());
        let given = given.filter(|id| (1..=MAX_BYTES).contains(&id.len()));
        HttpRequestId(given.map_or_else(|| new_id().into(), Into::into))
    }
}

/// 32 hexadecimal digits that no other call returns: a hash of a counter with two random keys of
/// this process.
pub(crate) fn new_id() -> String {
    static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let keys = KEYS.get_or_init(Default::default);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{:016x}", keys[0].hash_one(count), keys[1].hash_one(count))
}

/// Gives a request its id, and its reply the header.
pub(crate) async fn add_request_id(mut request: Request, next: Next) -> Response {
    let id = HttpRequestId::of(request.headers());
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

impl<S: Sync> FromRequestParts<S> for HttpRequestId {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<HttpRequestId, Self::Rejection> {
        Ok(parts.extensions.get::<HttpRequestId>().cloned().unwrap_or_else(|| HttpRequestId(new_id().into())))
    }
}
