//! Tests of the server on the built-in model, over HTTP.

mod chat;
mod client;
mod ends;
mod routes;
mod started;
