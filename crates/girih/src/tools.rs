//! For programs that report on a machine: its free memory, and the files that girih keeps.

pub use crate::folder::{PackedFile, PackedFolder};
pub use crate::free_memory::{FreeMemory, process_room};
