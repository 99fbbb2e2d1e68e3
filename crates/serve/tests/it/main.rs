//! Tests of the server through its socket: of its routes on the built-in model, and of what guards
//! them on routes of their own.

mod anthropic;
mod attacks;
mod chat;
mod client;
mod completions;
mod connections;
mod draw;
mod ends;
mod equal_bytes;
mod guarded;
mod leaving;
mod observed;
mod raw;
mod routes;
mod server;
mod soak;
mod started;
mod tls;
