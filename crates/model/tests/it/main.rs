//! The model crate from outside.
#![forbid(unsafe_code)]

#[path = "../../../words/tests/it/data.rs"]
mod data;
mod light;
