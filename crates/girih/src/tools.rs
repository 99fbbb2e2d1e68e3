//! For programs around girih: what a machine has free, the files that girih keeps, and files of
//! settings that are read with its care.

pub use crate::folder::{PackedFile, PackedFolder};
pub use crate::free_memory::{FreeMemory, process_room};
pub use girih_file::{read_secret, read_small};
