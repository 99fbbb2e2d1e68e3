//! What the kernel forbids a whole process that serves strangers, by the layers that also confine
//! the worker of chat templates: Landlock and a filter of system calls (seccomp).
//!
//! The process has to start workers again when they end, so it may run programs, but Landlock lets
//! it run only those that it names. The filter refuses calls that no server needs, rather than
//! allowing a list: threads, files and sockets of a server need many calls, which also differ
//! between kernels and C libraries. Systems other than Linux have neither layer.

mod allowed;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

pub use allowed::Confinement;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{can_limit_connections, confine};
#[cfg(target_os = "linux")]
pub use linux::{can_limit_connections, confine};
