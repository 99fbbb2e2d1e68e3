//! Tests of the server on the built-in model, over HTTP.

mod anthropic;
mod client;
mod started;
