//! What the kernel forbids a worker: Landlock takes away files and the network, and a filter
//! of system calls (seccomp) takes away all calls that rendering does not need.
//!
//! The worker enables both before it reads its first job, and cannot disable them. A
//! kernel may lack either of them; the worker then runs with the other one, and `girih doctor`
//! says so.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc;
use std::thread;

use serde::{Deserialize, Serialize};

use super::layers::{filter_calls, forbid_files};

/// A layer of the sandbox, which the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxLayer {
    /// Landlock without a rule: no path can be opened, no TCP port used, and no signal sent to
    /// another process. Since Linux 5.13; 6.7 for ports, 6.12 for signals.
    Landlock,
    /// A filter of system calls: all but a few fail.
    Seccomp,
}

impl SandboxLayer {
    /// All layers, in the order in which a worker enables them.
    pub const ALL: [SandboxLayer; 2] = [SandboxLayer::Landlock, SandboxLayer::Seccomp];

    /// The name in reports and arguments.
    pub fn name(self) -> &'static str {
        match self {
            SandboxLayer::Landlock => "landlock",
            SandboxLayer::Seccomp => "seccomp",
        }
    }
}

/// The layers that were asked for; for each that is off, the reason.
pub type SandboxStates = BTreeMap<SandboxLayer, Option<String>>;

/// Starts a thread with a stack of this size, and enables the sandbox for it and the caller.
/// No other thread may be running. Returns why layers are off.
///
/// # Errors
/// When the thread cannot be started.
pub(super) fn spawn_protected(
    wanted: &[SandboxLayer],
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<SandboxStates> {
    let mut states = BTreeMap::new();
    // A new thread inherits Landlock, and cannot be given it later; but starting a thread needs
    // calls that the filter refuses.
    if wanted.contains(&SandboxLayer::Landlock) {
        states.insert(SandboxLayer::Landlock, forbid_files().err());
    }
    let (started, is_started) = mpsc::sync_channel(0);
    thread::Builder::new().name("render".to_owned()).stack_size(stack_bytes).spawn(move || {
        // Fails only if the caller has ended.
        let _ = started.send(());
        body();
    })?;
    is_started.recv().map_err(io::Error::other)?;
    if wanted.contains(&SandboxLayer::Seccomp) {
        states.insert(SandboxLayer::Seccomp, filter_calls().err());
    }
    Ok(states)
}
