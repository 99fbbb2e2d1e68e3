//! Tokens in, tokens out: shares one loaded model among requests. It knows no
//! instruction set, file format or protocol.
//!
//! An [`Engine`] owns a [`Runner`](girih_graph::Runner). A [`Request`] goes in
//! by [`Engine::submit`]; each [`Engine::step`] runs the model once and returns
//! the [`Event`]s of it. The same requests in the same order give the same
//! tokens, whatever the size of the prefill chunks and whatever the cache held.
#![forbid(unsafe_code)]

pub mod cache;
mod engine;
mod error;
mod job;
mod model;
mod request;
pub mod sample;
mod sampling;
pub mod schedule;
pub mod text;

pub use engine::Engine;
pub use error::{Error, Result};
pub use request::{Event, Limits, Rate, Request, RequestId, Stats, Stop, Stops, What};
pub use sampling::Sampling;
