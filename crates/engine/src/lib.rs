//! Tokens in, tokens out: shares one loaded model among requests. It knows no
//! instruction set, file format or protocol.
//!
//! An [`Engine`] owns a [`Runner`](girih_graph::Runner). A [`Request`] goes in
//! by [`Engine::submit`]; each [`Engine::step`] runs the model once and returns
//! the [`Event`]s of it. A request's tokens depend on nothing but the request:
//! not on the size of the prefill chunks, on what the cache held, on which other
//! requests ran beside it, or on whether it had to make room for them.
//!
//! ```
//! use girih_engine::{Engine, Limits, Request, Result, Sampling, What};
//! use girih_graph::Runner;
//!
//! /// The ids of a greedy reply.
//! fn reply(runner: Box<dyn Runner>, prompt: Vec<u32>) -> Result<Vec<u32>> {
//!     let mut engine = Engine::new(runner, Limits::new(2048, 256))?;
//!     let sampling = Sampling::greedy();
//!     engine.submit(Request { tokens: prompt, sampling, ..Request::default() }, None)?;
//!     let mut ids = Vec::new();
//!     while !engine.is_idle() {
//!         for event in engine.step() {
//!             match &event.what {
//!                 What::Token { id, .. } => ids.push(*id),
//!                 What::Failed(error) => return Err(error.clone()),
//!                 What::Prefilled(_) | What::Finished { .. } => {}
//!             }
//!         }
//!     }
//!     Ok(ids)
//! }
//! ```
#![forbid(unsafe_code)]

pub mod cache;
mod engine;
mod job;
mod model;
mod request;
pub mod sample;
mod sampling;
pub mod schedule;
pub mod text;

pub use engine::Engine;
pub use girih_graph::{Error, Result};
pub use request::{Event, Limits, Rate, Request, RequestId, Stats, Stop, Stops, What};
pub use sampling::Sampling;
