//! Tests of the server on the built-in model, over HTTP.

mod anthropic;
mod chat;
mod client;
mod completions;
mod draw;
mod ends;
mod equal_bytes;
mod routes;
mod soak;
mod started;
