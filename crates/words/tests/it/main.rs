//! Tests of tokenizers: text to ids and back.
#![forbid(unsafe_code)]

mod bad;
mod data;
mod golden;
mod long;
mod spans;
mod vocab;
