//! Tests of the library on the built-in model.

mod equal_bytes;
mod given;
mod hooks;
mod sessions;
mod starts;
