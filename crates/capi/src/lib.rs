//! girih for C: the functions of `girih.h`, which a shared or a static library exports. Handles are numbers of tables, texts
//! are UTF-8, what is asked and answered is JSON, and no panic leaves a call.
//!
//! Programs in Rust use the crate `girih`, which this one turns into C. The page `docs/c.md` is for its users.
#![deny(unsafe_code)]

pub mod abi;
mod calls;
mod capabilities;
mod engine;
mod environment;
mod handles;
mod json;
mod model;
mod reply;
mod sparse;
pub mod status;
mod strings;
mod topology;
