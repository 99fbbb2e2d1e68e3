//! Tests of the library on the built-in model.

mod given;
mod hooks;
mod sessions;
mod starts;
#[cfg(feature = "grammar")]
mod structured;
