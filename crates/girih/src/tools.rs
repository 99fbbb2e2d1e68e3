//! For programs around girih: what a machine has free, the files that girih keeps, files of
//! settings that are read with its care, replies as JSON, and what the kernel forbids a program.

pub use crate::folder::{PackedFile, PackedFolder};
pub use crate::free_memory::{FreeMemory, peak_resident, process_room};
pub use crate::reply_json::{device_room, event_json, logprobs_json, memory_json, message_json, reply_json};
pub use girih_file::{read_secret, read_small};
pub use girih_words::confinement::{Confinement, can_limit_connections, confine};
pub use girih_words::template::{SandboxLayer, SandboxStates};
