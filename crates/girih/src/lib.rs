//! Runs open-weight language models: opens a model, plans its memory, loads it on a
//! backend, applies its chat template, tokenizes and generates. The crate never reads
//! environment variables; a program passes them in ([`OpenOptions::from_vars`]).
//!
//! Start with four types: [`Model`], [`Session`], [`Request`] and [`Event`].
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
//! - **A session is not a conversation.** It keeps a prefix cache, but no history: a
//!   [`Conversation`] is passed with each request, and the part of it that was run before is
//!   not run again.
//! - **A reply is the continuation only**; the prompt is not repeated. It is greedy unless
//!   the model's `generation_config.json` or [`Request::sampling`] says otherwise.
//! - **Any number of threads** may use clones of a session. A reply that nobody reads is
//!   suspended after [`RunOptions::unread_events`] events; it delays no other request.
//! - **Async programs** use [`Reply::poll`]; there is no runtime to choose.
//! - **Settings**: threads, backend, context and the type of the KV cache are
//!   [`RunOptions`]; temperature, seed and length belong to a [`Request`].
//! - **A chat needs a template**: `model.text_processor()?.template` is `None` without one.
//! - **Thinking and calls of tools** are parts of their own in the replies to a [`Conversation`]
//!   ([`Event::parts`], [`Reply::message`]): its chat template says in which [`ReplyStyle`] they are.
//! - **Images** need a model with an image tower and [`RunOptions::images`]: [`Request::images`] takes their patches.
//! - **Several models** in one process share a memory budget in a [`ModelPool`].
//! - **Embeddings**: [`Plan::load_embedder`] loads an encoder; an [`Embedder`] returns one vector
//!   for each text.
//! - **Linux only** so far: free memory is read from `/proc`.
//!
//! | feature | enables |
//! |---|---|
//! | `cpu` (default) | the backend for the host's processor |
//! | `npu` | the backend for simulated tiled arrays |
//! | `gpu` | the backend for GPUs; it is not in `all` |
//! | `hub` | models by id (`org/name`) in the Hugging Face cache, and downloads: see `hub` |
//! | `grammar` | replies of a JSON schema, a regular expression or a grammar: `Request::grammar`, `Request::tool_choice` |
//! | `all` | all of these but `gpu` |
//!
//! The `interpreter` backend is always available; it is slow and serves as the reference. A
//! program that wants to call each step itself uses [`Plan::load`].
#![forbid(unsafe_code)]

mod activity;
mod backends;
mod builtin;
mod cache_observer;
mod drafts;
mod embedder;
mod engine_thread;
mod expected_wait;
mod folder;
mod free_memory;
mod gpu_parts;
mod image;
#[cfg(feature = "image")]
mod image_preparation;
mod image_prompt;
mod image_tokens;
mod image_tower;
pub mod json;
mod location;
mod mailbox;
mod model;
mod model_pool;
mod mtp_plan;
mod open_options;
#[cfg(feature = "image")]
mod picture_preparation;
mod places;
mod plan;
mod pool_entry;
mod priority;
mod progress;
mod prompt;
mod prompt_cache;
mod prompt_map;
mod prompt_work;
mod readiness;
mod rendered_prompt;
mod reply;
mod reply_format;
mod reply_json;
mod reply_text;
mod request;
mod request_rules;
mod run_options;
mod services;
mod session;
mod store;
mod sync_worker;
mod thinking_budget;
#[cfg(feature = "grammar")]
mod tool_choice;
pub mod tools;
mod tower_plan;
#[cfg(feature = "image")]
mod video_preparation;

pub use activity::EngineActivity;
pub use backends::{backend, backends, default_threads};
pub use builtin::{BUILT_IN, BUILT_IN_BYTES, BUILT_IN_PROMPT, BUILT_IN_TEMPLATE};
pub use cache_observer::{CacheEvent, CacheObserver, StoredBlocks};
pub use drafts::Drafts;
pub use embedder::Embedder;
pub use girih_engine as engine;
pub use girih_engine::sample::{Logprob, Logprobs};
pub use girih_engine::{
    Constraint, DraftQuery, Drafter, Dry, Engine, EngineLimits, LatencySummary, NearestPrompt, Overflow,
    Priority, RepetitionRule, Sampling, Stats, Stop, Tenant, TimeLimits, TokenLatencies, TokenRate,
};
#[cfg(feature = "grammar")]
pub use girih_grammar::{Grammar, SchemaObjects, schema_from_api};
pub use girih_graph as graph;
pub use girih_graph::backend::{HostWork, Refusal, Unwatched};
pub use girih_graph::description::{
    AllowedValues, BackendChoice, BackendDevice, BackendInfo, BackendOption, DefaultRounding, SWITCH,
};
pub use girih_graph::{
    BLOCK_POSITIONS, DevicePool, Error, ErrorKind, MemoryPlan, Numerics, Phases, PoolBytes, Result, Rounding,
};
#[cfg(feature = "hub")]
pub use girih_hub as hub;
#[cfg(feature = "image")]
pub use girih_image::{DecodeLimits, Picture};
pub use girih_model::QuantizationError;
pub use girih_model::arch::ImageGrid;
pub use girih_tensor::DType;
pub use girih_words::reply::{
    CallForm, CallGrammar, CallPiece, ReplyMessage, ReplyPart, ReplyStyle, Tool, ToolCall,
};
pub use girih_words::template::worker_main as template_worker;
pub use girih_words::template::{Conversation, Renderer};
pub use girih_words::{BosEos, InfillFile, Specials, TextOrigin, TextProcessor, TextSpan};
pub use image::{ImageFormat, ImagePatches};
pub use mailbox::Event;
pub use model::Model;
pub use model_pool::{EngineFaults, LoadedModel, ModelPool};
pub use open_options::{AdapterSource, OpenOptions, SyncProcess, TemplateProcess};
pub use plan::Plan;
pub use progress::Progress;
pub use prompt::Prompt;
pub use prompt_map::{PromptMap, PromptPart};
pub use readiness::{LoadTimes, WhenReady};
pub use rendered_prompt::{RenderedImage, RenderedPrompt};
pub use reply::{CancelHandle, Reply};
pub use reply_format::ReplyFormat;
pub use request::Request;
pub use run_options::{PromptCache, RunOptions};
pub use session::Session;
pub use sync_worker::{SYNC_COMMAND, sync_worker};
#[cfg(feature = "grammar")]
pub use tool_choice::ToolChoice;
pub use tower_plan::{IMAGES_KEPT, TowerPlan};
#[cfg(feature = "image")]
pub use video_preparation::MAX_FRAMES;
