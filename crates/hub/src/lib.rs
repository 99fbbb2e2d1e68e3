//! From a model's id to its files: the Hugging Face cache, offline look-up,
//! download with resume and digests, and the care of what is on disk.
//!
//! Nothing here reads the environment (the caller hands in a [`HubEnv`]), opens
//! a model's contents, or trusts a name, a length or a byte that a server sent.
#![forbid(unsafe_code)]

mod address;
mod cache;
mod client;
mod digest;
mod env;
mod fuzz;
mod id;
mod listing;
mod manage;
mod options;
mod progress;
mod pull;
mod select;
mod transfer;

pub use cache::{Snapshot, find};
pub use digest::sha256;
pub use env::HubEnv;
#[doc(hidden)]
pub use fuzz::fuzz;
pub use id::{ModelId, Reference};
pub use manage::{CachedModel, CachedRevision, Removed, Repaired, list, remove, repair};
pub use options::PullOptions;
pub use progress::Progress;
pub use pull::{Pulled, pull};
