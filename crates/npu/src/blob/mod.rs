//! The blob: a schedule as an ELF file, and pass 6, which encodes it.
//!
//! | section | holds |
//! |---|---|
//! | `.girih` | versions, the target and the digest of its figures, the program's name |
//! | `.arguments` | names, roles and sizes of what the host binds |
//! | `.launch.N` | the name of launch N, its buffers, locks, tasks, streams and cascades |
//! | `.text.N.C.R` | the program of the core in column C, row R |
//! | `.constants` | the floats that programs give to kernels, four bytes each; programs name them by place |
//! | `.descriptors.N` | the buffer descriptors |
//! | `.rela.descriptors.N` | for each descriptor that reaches DRAM: which argument, from which byte |
//! | `.commands.N` | what the command processor does |
//!
//! Each argument is an undefined symbol, and the descriptors of shim tiles have
//! eight zero bytes where its address goes: a driver patches them at load, the
//! way that a linker would.

mod cache;
mod encoding;
mod wire;

pub use cache::{BlobCache, DEFAULT_CACHE_BYTES, ManifestEntry};
pub use encoding::{decode, digest, encode, read};
