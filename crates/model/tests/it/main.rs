//! The integration tests of the model crate, in one program.
#![forbid(unsafe_code)]

mod data;
mod words;
