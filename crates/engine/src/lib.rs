//! Shares one loaded model among requests: tokens in, tokens out. This crate has no
//! notion of instruction sets, file formats or protocols.
//!
//! An [`Encoder`] runs models that turn each sequence into one row, and a [`Tower`] those that turn an image into rows of
//! a text model.
//!
//! An [`Engine`] owns a [`Runner`](girih_graph::Runner). [`Engine::submit`] queues a
//! [`TokenRequest`]; each [`Engine::step`] runs the model once and returns its
//! [`RequestEvent`]s. A request's tokens depend on the request only: not on the size
//! of prefill chunks, the contents of the prefix cache, the other requests of the
//! batch, drafts or suspensions. This holds on backends whose results do not
//! depend on the number of rows of a step (all but `npu`). The engine is `Send`: a server
//! moves it to a thread of its own.
//!
//! ```
//! use girih_engine::{Engine, EngineLimits, EventKind, Hooks, TokenRequest, Result, Sampling};
//! use girih_graph::Runner;
//!
//! /// Returns the ids of a greedy reply.
//! fn reply(runner: Box<dyn Runner>, prompt: Vec<u32>) -> Result<Vec<u32>> {
//!     let mut engine = Engine::new(runner, EngineLimits::new(2048, 256))?;
//!     let sampling = Sampling::greedy();
//!     engine.submit(TokenRequest { tokens: prompt, sampling, ..TokenRequest::default() }, Hooks::default())?;
//!     let mut ids = Vec::new();
//!     while !engine.is_idle() {
//!         for event in engine.step() {
//!             match &event.kind {
//!                 EventKind::Token { id, .. } => ids.push(*id),
//!                 EventKind::Failed(error) => return Err(error.clone()),
//!                 EventKind::PromptToken { .. } | EventKind::Prefilled(_) => {}
//!                 EventKind::Logits(_) | EventKind::Finished { .. } => {}
//!             }
//!         }
//!     }
//!     Ok(ids)
//! }
//! ```
#![forbid(unsafe_code)]

pub mod cache;
mod cached_runner;
mod choose;
mod draft;
mod encoder;
mod engine;
mod given_inputs;
mod hooks;
mod latency;
mod limits;
mod live_request;
mod overflow;
mod pace;
mod position_key;
mod prompt_content;
mod repetition;
mod request;
mod result_rows;
mod row_work;
pub mod sample;
mod sampling;
mod saved_prefix;
pub mod scheduler;
mod service;
mod step_costs;
mod step_inputs;
pub mod text;
mod tower;
mod whole_runs;

pub use cache::NearestPrompt;
pub use draft::{DraftModel, DraftSource, HiddenNames, MtpModel, PromptLookup};
pub use encoder::{Encoder, EncoderInput};
pub use engine::Engine;
pub use girih_graph::{Error, ErrorKind, Result};
pub use hooks::{Constraint, DraftQuery, Drafter, HiddenRows, Hooks};
pub use latency::{LatencySummary, TokenLatencies};
pub use overflow::Overflow;
pub use pace::{Pace, WorkLeft};
pub use position_key::{PositionContent, PositionKey};
pub use repetition::RepetitionRule;
pub use request::{
    EmbeddedRows, EngineLimits, EventKind, RequestEvent, RequestId, Stats, Stop, StopRules, Stops,
    TokenPrompt, TokenRate, TokenRequest,
};
pub use row_work::{LEAST_PROMPT_ROWS, PromptShare, RowWork};
pub use sampling::{Dry, Sampling};
pub use saved_prefix::{SavedBlocks, SavedPrefix};
pub use service::{Priority, Tenant, TimeLimits};
pub use step_costs::StepCosts;
pub use step_inputs::TowerInputs;
pub use text::Detokenize;
pub use tower::{Tower, TowerRows};
