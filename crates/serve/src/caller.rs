//! Who makes a request.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use girih::Tenant;

/// Who makes a request. The access checks add it to the request's extensions; without keys, all
/// requests come from one caller, [`ApiCaller::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiCaller {
    /// The party whose requests share cached prefixes and a share of the model's time: one for each key.
    pub tenant: Tenant,
    /// The maximum number of its replies that may run or wait; `None` for no limit but the queue.
    pub max_replies: Option<u32>,
}

impl<S: Sync> FromRequestParts<S> for ApiCaller {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ApiCaller, Self::Rejection> {
        Ok(parts.extensions.get::<ApiCaller>().cloned().unwrap_or_default())
    }
}
