//! Tests of the server on the built-in model, over HTTP.

mod anthropic;
mod chat;
mod client;
mod completions;
mod embeddings;
mod ends;
mod ollama;
mod responses;
mod routes;
mod started;
