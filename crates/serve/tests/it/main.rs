//! Tests of the server on the built-in model, over HTTP.

mod chat;
mod client;
mod completions;
mod ends;
mod routes;
mod started;
