//! The blob: a schedule as an ELF file, which pass 6 encodes.
//!
//! | section | content |
//! |---|---|
//! | `.girih` | versions, the target and the digest of its figures, the program's name |
//! | `.arguments` | names, roles and sizes of the arguments |
//! | `.launch.N` | the name of launch N, its buffers, locks, tasks, streams and cascades |
//! | `.text.N.C.R` | the program of the core in column C, row R |
//! | `.constants` | the float parameters of kernel calls, four bytes each; programs refer to them by index |
//! | `.descriptors.N` | the buffer descriptors |
//! | `.rela.descriptors.N` | the argument and byte offset of each descriptor that accesses DRAM |
//! | `.commands.N` | the commands of the command processor |
//!
//! Each argument is an undefined symbol, and the descriptors of shim tiles have
//! eight zero bytes for its address. A driver patches them at load, like a
//! linker.
//!
//! The last 32 bytes of a blob are the SHA-256 of all others. At load, the digest is
//! compared, and the schedule is checked against the rules of its target.

mod cache;
mod encoding;
mod wire;

pub use cache::{BlobCache, BlobFolder, DEFAULT_CACHE_BYTES, ManifestEntry};
pub use encoding::{decode, digest, encode, read, read_for_its_target};
