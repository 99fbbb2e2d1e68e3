//! Containers of tensors: safetensors and GGUF files, whole or in shards.
//!
//! A [`Container`] lists its tensors and reads parts of them on demand; it
//! does not interpret them. Every size in a file is checked against the file's
//! length when the file is opened.
#![forbid(unsafe_code)]

mod container;
mod cursor;
mod folder;
#[doc(hidden)]
pub mod fuzz;
pub mod gguf;
mod gguf_writer;
mod identity;
mod limits;
pub mod metadata;
mod open;
pub mod q4nx;
mod quote;
pub mod safetensors;
mod safetensors_writer;
mod source;
mod staged;
mod writer;

pub use container::{Container, Contents, Kind, TensorInfo};
pub use folder::{COMPANIONS, INDEX};
pub use limits::Limits;
pub use metadata::{Array, Metadata, Strings, Value};
pub use quote::quote;
pub use source::{ReadAt, Source, read_small};
pub use writer::{NewTensor, Writer};
