//! The routes, one module for each endpoint. A module reads the wire format of its API, makes a
//! neutral request of it, and writes the reply in the same format.

pub mod anthropic;
pub mod calls_so_far;
pub mod embedding;
pub mod girih;
pub mod health;
pub mod metrics;
pub mod ollama;
pub mod one_or_many;
pub mod openai;
pub mod reasons;
pub mod reply_form;
pub mod token_text;
