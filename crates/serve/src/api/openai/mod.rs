//! The endpoints of OpenAI's API.

pub mod chat;
pub mod chat_reply;
pub mod chat_request;
pub mod logprobs;
pub mod messages;
pub mod models;
pub mod parameters;
pub mod usage;

use std::sync::Arc;

use axum::Router;

use crate::state::ServerState;

/// The routes of OpenAI's API.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().merge(chat::routes()).merge(models::routes())
}
