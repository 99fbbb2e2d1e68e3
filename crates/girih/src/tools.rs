//! For programs that report on a machine: its free memory, and the files that girih keeps.

pub use crate::folder::{CacheFolder, KeptFile};
pub use crate::free_memory::FreeMemory;
