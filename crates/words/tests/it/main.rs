//! Tests of tokenizers: text to ids and back.
#![forbid(unsafe_code)]

mod bad;
mod confinement;
mod data;
mod golden;
mod in_process;
mod long;
mod replies;
mod round_trips;
mod spans;
mod templates;
mod trained;
mod vocab;
mod wordpiece;
