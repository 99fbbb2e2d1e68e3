//! Tests of the server on the built-in model, over HTTP.

mod chat;
mod client;
mod draw;
mod ends;
mod equal_bytes;
mod routes;
mod soak;
mod started;
