//! Tests of the server through its socket: of its routes on the built-in model, and of what guards
//! them on routes of their own.

mod attacks;
mod chat;
mod client;
mod completions;
mod connections;
mod ends;
mod leaving;
mod observed;
mod raw;
mod routes;
mod server;
mod started;
mod tls;
