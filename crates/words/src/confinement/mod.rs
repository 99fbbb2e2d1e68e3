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
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

use crate::template::SandboxStates;

/// Confines this process: it gains no privileges, leaves no core dump, cannot be traced by others of
/// its user, reads and writes only what `allowed` says, and opens no sockets but those to connect to the
/// allowed port. Threads that run already are not held by Landlock, so this comes before they are
/// started, and after sockets are bound. Returns why layers are off; the others are on.
///
/// A port is allowed only if [`can_limit_connections`]; else no connection is.
pub fn confine(allowed: &Confinement) -> SandboxStates {
    system::confine(allowed)
}

/// Whether the kernel can limit the ports to which a process connects: Landlock since Linux 6.7.
pub fn can_limit_connections() -> bool {
    system::can_limit_connections()
}
