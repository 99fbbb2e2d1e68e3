//! Runs open-weight language models: finds and opens a model, chooses a backend, plans
//! memory, loads, renders chat templates, tokenizes and generates. This crate names the
//! backends, and it reads no environment: a program hands over what it found there
//! ([`OpenOptions`]).
//!
//! A first program meets four types: [`Model`], [`Session`], [`Request`] and [`Event`].
//!
//! ```
//! use girih::{Model, Request, Result};
//!
//! fn main() -> Result<()> {
//!     let session = Model::open("stories260k")?.start()?;
//!     for event in session.generate(Request::new("Once upon a time"))? {
//!         print!("{}", event?.text());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `cpu` (default) | the backend for the host's processor |
//! | `npu` | the backend for simulated tiled arrays |
//! | `hub` | models by id (`org/name`) in the Hugging Face cache |
//!
//! The interpreter, which defines every op, is always there. A [`Session`] runs the model on
//! a thread of its own; a program that wants to call each step itself uses [`Plan::load`].
#![forbid(unsafe_code)]

mod backends;
mod builtin;
mod engine_thread;
mod folder;
mod free_memory;

mod location;
mod mailbox;
mod model;
mod open_options;
mod plan;
mod priority;
mod progress;
mod reply;
mod request;
mod run_options;
mod services;
mod session;
mod store;
pub mod tools;

pub use backends::{backend, backends, default_threads};
pub use builtin::{BUILT_IN, BUILT_IN_PROMPT};
pub use girih_engine::sample::{Logprob, Logprobs};
pub use girih_engine::{
    Constraint, Drafter, Engine, EngineLimits, Overflow, Sampling, Stats, Stop, TokenRate,
};
pub use girih_graph::backend::{HostWork, MemoryPlan, Refusal, Unwatched};
pub use girih_graph::description::{AllowedValues, BackendChoice, BackendInfo, BackendOption};
pub use girih_graph::{Error, ErrorKind, Numerics, Phases, Result, Rounding};
#[cfg(feature = "hub")]
pub use girih_hub as hub;
pub use girih_tensor::DType;
pub use girih_words::template::Conversation;
pub use girih_words::template::worker_main as template_worker;
pub use girih_words::{BosEos, TextOrigin, TextProcessor, TextSpan};
pub use mailbox::Event;
pub use model::Model;
pub use open_options::{OpenOptions, TemplateProcess};
pub use plan::Plan;
pub use progress::Progress;
pub use reply::{CancelHandle, LoadTimes, Reply};
pub use request::{Prompt, Request};
pub use run_options::RunOptions;
pub use session::Session;
