//! Finds the files of a model id: the Hugging Face cache, offline lookup,
//! downloads with resume and digests, removal and repair.
//!
//! This crate does not read the environment (callers pass a [`HubEnv`]), does
//! not interpret a model's contents, and trusts no name, length or byte that a
//! server sends.
#![forbid(unsafe_code)]

mod address;
mod ask;
mod cache;
mod client;
mod digest;
mod env;
mod fetch;
mod fuzz;
mod id;
mod listing;
mod manage;
mod options;
mod page;
mod progress;
mod pull;
mod resolve;
mod select;
mod transfer;

pub use ask::ask_server;
pub use cache::{Snapshot, find};
pub use digest::sha256;
pub use env::HubEnv;
pub use fetch::{FetchLimits, FetchNetwork, check_own_addresses, fetch, is_public};
#[doc(hidden)]
pub use fuzz::fuzz;
pub use id::{ModelId, ModelReference};
pub use manage::{
    CachedModel, CachedRevision, Removed, Repaired, RevisionFault, Unfinished, UnfinishedFiles, keep_only,
    list, remove, repair,
};
pub use options::PullOptions;
pub use progress::PullProgress;
pub use pull::{Pulled, pull};
pub use select::GgufChoice;
