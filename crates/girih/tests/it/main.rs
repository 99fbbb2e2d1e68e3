//! Tests of the library on the built-in model.

mod equal_bytes;
mod given;
mod hooks;
mod prompt_cache;
mod sessions;
mod starts;
#[cfg(feature = "grammar")]
mod structured;
