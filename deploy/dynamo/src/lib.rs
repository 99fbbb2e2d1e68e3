//! A worker of NVIDIA Dynamo over girih, on the crate `dynamo-backend-common`, without etcd or NATS:
//!
//! ```text
//! girih-dynamo MODEL --discovery-backend file --request-plane tcp --event-plane zmq
//! ```
//!
//! MODEL is a folder with weights, `config.json` and `tokenizer.json`, which Dynamo's frontend reads, too. The frontend tokenizes and
//! detokenizes, finds stop texts and routes; the worker takes token ids and returns token ids, and publishes events of its prefix
//! cache. What girih cannot do is refused by name. Priorities and routes of a request are the router's, and have no effect here.
//!
//! Needs `protoc` while it is built (Debian: `protobuf-compiler`).

#![forbid(unsafe_code)]

mod args;
mod engine;
mod error;
mod kv_events;
mod live_reply;
mod request;

pub use args::WorkerArgs;
pub use engine::GirihEngine;
pub use kv_events::kv_cache_event;
pub use request::{girih_request, girih_sampling};
