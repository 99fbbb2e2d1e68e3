//! The checks around the routes, in their order.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::access::{AccessRules, check_access};
use crate::body_limits::{BodyLimits, limit_body};
use crate::observe::{Observer, observe};
use crate::request_id::add_request_id;

/// The routes of `router` behind the checks: a request gets an id and is observed, its caller is
/// known and may call, and its body is read within limits.
pub fn guarded(router: Router, access: AccessRules, bodies: BodyLimits, observer: Observer) -> Router {
    router
        // The limit of axum is lower than that of `bodies`.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(bodies, limit_body))
        .layer(from_fn_with_state(Arc::new(access), check_access))
        .layer(from_fn_with_state(observer, observe))
        .layer(from_fn(add_request_id))
}
