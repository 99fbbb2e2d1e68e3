//! Serves models over HTTP: requests of OpenAI's, Anthropic's and Ollama's clients become
//! requests of [`girih`], and its events become their replies.
//!
//! Start with two types: [`ServeOptions`] and [`Server`].
//!
//! A request passes these modules in order: `access` says who calls ([`ApiCaller`]), a module of
//! `api` reads its body and makes a [`GenerationRequest`](generation::GenerationRequest),
//! `generation` admits and begins it, and a writer of the same module of `api` turns its events
//! into JSON, whole or through `sse`.
#![forbid(unsafe_code)]

pub mod access;
mod adapter_changes;
pub mod api;
mod background;
pub mod body_limits;
mod body_room;
mod cache_reports;
mod calendar;
mod call_ids;
mod caller;
pub mod drain;
pub mod encoders;
pub mod error;
mod fetched_images;
mod field_words;
mod find_model;
pub mod generation;
pub mod guard;
mod hexadecimal;
mod image_fetcher;
mod images;
mod json_body;
mod keep_alive;
mod kv_events;
pub mod listener;
mod model_changes;
mod model_folder;
mod models;
pub mod observe;
mod openapi;
mod options;
pub mod page;
pub mod parameters;
mod ready_session;
mod rendering;
mod reply_rules;
mod request_hook;
mod request_id;
mod sampling_settings;
mod served_model;
mod server;
pub mod sse;
mod state;
mod template_fault;
pub mod thinking;
mod turns;
mod videos;

pub use caller::ApiCaller;
pub use image_fetcher::ImageFetcher;
pub use kv_events::{KvEventsAddress, KvEventsOptions};
pub use model_changes::{ChangeEvent, ChangeListener, ChangeProgress, ModelChange, ModelChanger};
pub use model_folder::{FolderEntry, ModelFolder};
pub use models::{ListedModel, ServedModels};
pub use options::ServeOptions;
pub use reply_rules::ReplyRules;
pub use request_hook::RequestHook;
pub use request_id::HttpRequestId;
pub use sampling_settings::{DrySettings, SamplingSettings};
pub use served_model::ServedModel;
pub use server::{EndSignals, Server, router};
pub use state::ServerState;
