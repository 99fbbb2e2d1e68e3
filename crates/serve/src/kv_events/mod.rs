//! Events of the KV cache for routers, in the form of vLLM's: which blocks of tokens this server has cached.
//!
//! A message has three frames: the topic `kv@POD@MODEL`, a sequence number of 8 bytes, the first byte most
//! significant, and a batch of events in MessagePack (`vllm/distributed/kv_events.py`). Sequence numbers count the
//! messages of all models, so that a subscriber to all topics sees what it has missed.

mod address;
mod message_pack;
mod publisher;
mod sockets;
mod zmtp;

pub use address::{KvEventsAddress, KvEventsOptions};
pub(crate) use publisher::{KvEventCounts, KvEvents};
pub(crate) use sockets::EventSockets;
