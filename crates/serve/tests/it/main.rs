//! Tests of the server through its socket.

mod attacks;
mod connections;
mod raw;
mod server;
