//! The endpoints of OpenAI's API.

pub mod asked_thinking;
pub mod chat;
pub mod chat_reply;
pub mod chat_request;
pub mod completion_reply;
pub mod completion_request;
pub mod completions;
pub mod embeddings;
pub mod functions;
pub mod infill;
pub mod infill_reply;
pub mod logprobs;
pub mod media_options;
mod messages;
pub mod models;
pub mod parameters;
pub mod render;
pub mod reply_head;
pub mod responses;
pub mod template_variables;
pub mod tokenize;
pub mod tool_choice;
pub mod usage;

use std::sync::Arc;

use axum::Router;

use crate::state::ServerState;

/// The routes of OpenAI's API.
pub fn routes() -> Router<Arc<ServerState>> {
    let generation = Router::new().merge(chat::routes()).merge(completions::routes()).merge(infill::routes());
    generation
        .merge(models::routes())
        .merge(render::routes())
        .merge(tokenize::routes())
        .merge(embeddings::routes())
        .merge(responses::routes())
}
