//! For programs around girih: what a machine has free, the files that girih keeps, files of
//! settings that are read with its care, replies as JSON, the processor's sockets, and what the kernel
//! forbids a program.

pub use crate::folder::{PackedFile, PackedFolder};
pub use crate::free_memory::{FreeMemory, peak_resident, process_room};
pub use crate::reply_json::{
    device_room, event_json, latency_json, logprobs_json, memory_json, message_json, rate_json, reply_json,
};
#[cfg(feature = "cpu")]
pub use girih_cpu::affinity::pin_to;
#[cfg(feature = "cpu")]
pub use girih_cpu::topology::{Processor, Topology};
pub use girih_file::{iebs, quote, read_secret, read_small, shorten_parse};
pub use girih_words::confinement::{Confinement, can_limit_connections, confine};
pub use girih_words::template::{SandboxLayer, SandboxStates};
