//! Tests of the library on the built-in model.

mod hooks;
mod sessions;
mod starts;
