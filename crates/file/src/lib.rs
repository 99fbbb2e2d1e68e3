//! Containers of tensors: safetensors and GGUF files, whole or in shards, FastFlowLM's `model.q4nx`, and folders of IEBIN; and
//! block-sparse matrices.
//!
//! A [`Container`] lists its tensors and reads parts of them on demand; it
//! does not interpret them. Every size in a file is checked against the file's
//! length when the file is opened.
#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!("girih-file needs Linux or macOS: on Windows, build girih in the Windows Subsystem for Linux");

mod capped_list;
mod container;
mod cursor;
mod folder;
#[doc(hidden)]
pub mod fuzz;
pub mod gguf;
mod gguf_writer;
mod identity;
pub mod iebin;
mod iebin_matrix;
mod iebin_overlay;
mod iebin_writer;
pub mod iebs;
mod iebs_writer;
mod limits;
mod lock;
pub mod metadata;
mod mlx;
mod nearest;
mod open;
mod outside;
mod private;
pub mod q4nx;
mod quote;
pub mod safetensors;
mod safetensors_writer;
mod scale_numbers;
mod source;
pub mod sparse_blocks;
mod split_name;
mod staged;
mod writer;

pub use container::{Container, ContainerKind, HeaderContents, TensorInfo, UnreadableTensor};
pub use folder::{COMPANIONS, SAFETENSORS_INDEX, companions_version};
pub use iebin_overlay::OVERLAY as IEBIN_OVERLAY;
pub use iebin_writer::{IebinGroup, IebinScales, IebinStorage, IebinTensor, OverlayWriters};
pub use iebs_writer::IEBS_VALUES;
pub use limits::FileLimits;
pub use lock::{FileLock, lock_file};
pub use metadata::{Metadata, MetadataArray, MetadataValue, Strings};
pub use mlx::MlxQuantization;
pub use nearest::{nearest, similar};
pub use open::{is_projector, projector_files};
pub use outside::{
    copy_companion, open_companion, open_regular, read_companion, read_required, read_secret, read_small,
    write_companion,
};
pub use private::{FolderLock, PrivateFolder, try_lock_file};
pub use q4nx::{OWN_Q4NX_FAMILY, Q4NX_FILE};
pub use quote::{fault_in_line, quote, shorten, shorten_parse};
pub use source::{ByteSource, ReadAt};
pub use split_name::SplitName;
pub use staged::{create_private_file, replace_file};
pub use writer::{ContainerWriter, NewTensor};
