//! Tests of the server through its socket: of its routes on the built-in model, and of what guards
//! them on routes of their own.

mod anthropic;
mod attacks;
mod chat;
mod client;
mod completions;
mod connections;
mod draw;
mod embeddings;
mod ends;
mod equal_bytes;
mod leaving;
mod observed;
mod ollama;
mod raw;
mod responses;
mod routes;
mod server;
mod soak;
mod started;
mod tls;
mod tools;
mod waiting;
