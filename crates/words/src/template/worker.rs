//! The worker process: reads jobs from stdin, writes answers to stdout, and ends at
//! the end of stdin.

use std::io;
use std::process::ExitCode;
use std::sync::mpsc;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::answer::answer;
use super::jinja::CompiledTemplate;
use super::protocol::{read_frame, write_frame};
use super::sandbox::{SandboxLayer, spawn_protected};

/// The binary's hidden command that calls [`worker_main`].
pub const WORKER_COMMAND: &str = "template-worker";

/// Address space of a worker. Real templates need less than 100 MiB, nearly all of
/// it for the stack and the binary.
pub const WORKER_MEMORY_BYTES: u64 = 512 << 20;

/// Stack of the rendering thread: minijinja recurses into nested expressions and
/// values, with a few hundred bytes per level.
pub const WORKER_STACK_BYTES: usize = 64 << 20;

/// CPU seconds of a worker in total, in case the parent fails to stop it.
const CPU_SECONDS: u64 = 600;

/// The maximum bytes of one job. The parent has a lower limit.
const JOB_BYTES: usize = 128 << 20;

/// Runs the worker: sets its resource limits, enables the sandbox, then answers jobs until
/// stdin ends. No other thread may be running.
///
/// The main thread only reads, so the process ends with its parent even during a
/// rendering.
pub fn worker_main() -> ExitCode {
    match limit_resources().and_then(|()| serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("template worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Limits what this process may use.
pub(super) fn limit_resources() -> io::Result<()> {
    let limits = [
        (Resource::As, WORKER_MEMORY_BYTES),
        (Resource::Core, 0),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, 0),
    ];
    for (resource, max) in limits {
        setrlimit(resource, Rlimit { current: Some(max), maximum: Some(max) })?;
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    let (jobs, next_job) = mpsc::channel();
    // A kernel may lack a layer; `girih doctor` shows it.
    spawn_protected(&SandboxLayer::ALL, WORKER_STACK_BYTES, move || answer_all(&next_job))?;
    let mut stdin = io::stdin().lock();
    while let Some(job) = read_frame(&mut stdin, JOB_BYTES)? {
        jobs.send(job).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Answers jobs until the reader or the parent has ended.
fn answer_all(jobs: &mpsc::Receiver<Vec<u8>>) {
    let mut compiled = None;
    for job in jobs {
        let answer = answer(&job, &mut compiled, CompiledTemplate::new);
        let body = serde_json::to_vec(&answer).expect("an answer is a string");
        if write_frame(&mut io::stdout().lock(), &body).is_err() {
            return;
        }
    }
}
