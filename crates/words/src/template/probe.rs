//! A check from inside of a worker: it enables the sandbox, and then attempts what that must
//! prevent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, getppid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::sandbox::{SandboxLayer, SandboxStates, spawn_protected};
use super::worker::{WORKER_STACK_BYTES, limit_resources};

/// The argument after [`WORKER_COMMAND`](super::WORKER_COMMAND) that calls [`probe_main`].
pub const PROBE_ARGUMENT: &str = "probe";

/// What [`probe_main`] found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The layers that were asked for; for each that is off, the reason.
    pub layers: SandboxStates,
    /// What the worker attempted; for each attempt that failed, the error.
    pub attempts: BTreeMap<String, Option<String>>,
}

/// Enables the sandbox as a worker does, attempts what a worker must not do, and prints a
/// [`SandboxReport`] as JSON. `names` are those of the layers; others are refused.
pub fn probe_main<'a>(names: impl IntoIterator<Item = &'a str>) -> ExitCode {
    let find = |name: &str| SandboxLayer::ALL.into_iter().find(|layer| layer.name() == name);
    let Some(wanted) = names.into_iter().map(find).collect::<Option<Vec<_>>>() else {
        eprintln!("template worker: a layer of the sandbox is unknown; known are landlock and seccomp");
        return ExitCode::from(2);
    };
    match probe(&wanted).and_then(|report| Ok(writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("template worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probe(wanted: &[SandboxLayer]) -> io::Result<SandboxReport> {
    limit_resources()?;
    let parent = getppid();
    let (go, is_on) = mpsc::channel();
    let (outcome, found) = mpsc::channel();
    let layers = spawn_protected(wanted, WORKER_STACK_BYTES, move || {
        if let Ok(is_on) = is_on.recv() {
            // Fails only if the main thread has ended.
            let _ = outcome.send(attempts(is_on, parent));
        }
    })?;
    let is_on = layers.values().any(Option::is_none);
    go.send(is_on).map_err(io::Error::other)?;
    let attempts = found.recv().map_err(io::Error::other)?;
    Ok(SandboxReport { layers, attempts })
}

/// Attempts what a worker must not do. Replaces this process only if a layer `is_on`.
fn attempts(is_on: bool, parent: Option<Pid>) -> BTreeMap<String, Option<String>> {
    let own = || {
        let mut program = Command::new("/proc/self/exe");
        program.arg("--version").env_clear().stdin(Stdio::inherit());
        program
    };
    let signal = || parent.map_or(Ok(()), test_kill_process);
    let mut found: BTreeMap<String, io::Result<()>> = [
        ("open a file", File::open("/").map(drop)),
        ("open a TCP port", TcpListener::bind("127.0.0.1:0").map(drop)),
        ("open a UDP port", UdpSocket::bind("127.0.0.1:0").map(drop)),
        ("open a Unix socket", UnixDatagram::unbound().map(drop)),
        ("signal its parent", signal().map_err(io::Error::from)),
        ("start a thread", thread::Builder::new().spawn(|| ()).map(drop)),
        ("start a process", own().output().map(drop)),
    ]
    .map(|(name, outcome)| (name.to_owned(), outcome))
    .into();
    if is_on {
        found.insert("become another program".to_owned(), Err(own().exec()));
    }
    found.into_iter().map(|(name, outcome)| (name, outcome.err().map(|error| error.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_protection_is_refused() {
        assert_eq!(probe_main(["selinux"]), ExitCode::from(2));
    }
}
