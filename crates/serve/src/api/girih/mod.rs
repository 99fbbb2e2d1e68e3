//! Routes of girih's own.

pub mod adapters;
pub mod cache;

use std::sync::Arc;

use axum::Router;

use crate::state::ServerState;

/// The routes of girih's own.
pub fn routes() -> Router<Arc<ServerState>> {
    cache::routes().merge(adapters::routes())
}
