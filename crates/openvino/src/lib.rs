//! The backend for OpenVINO: graphs as models that a processor or a GPU of Intel runs. It knows no models, text or
//! requests.
//!
//! The library is found when a device is opened; nothing of it is needed to build. Keys and values lie in the host's
//! memory, in blocks as the engine assigns them, and in windows as a model reads them; or they lie in variables of the model,
//! and the host has their tokens. In single precision, equal calls have equal bytes; chunks and neighbours may change the
//! last bits.
#![deny(unsafe_code)]

mod backend;
mod blobs;
mod call;
mod device;
mod ffi;
mod info;
mod ir;
mod kv_form;
mod library;
mod lower;
mod node_times;
mod planes;
mod product_type;
mod program;
mod refuse;
mod requests;
mod slots;
mod state;
mod step_shape;
mod tokens;
mod weights;
mod windows;

pub use backend::OpenVinoBackend;
pub use info::INFO;
pub use program::OpenVinoProgram;
pub use state::OpenVinoState;
pub use weights::OpenVinoWeights;
