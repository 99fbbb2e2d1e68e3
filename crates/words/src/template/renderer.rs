//! The caller's side: starts workers, sends them jobs, stops those that run too
//! long, and reports errors.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use girih_file::shorten;
use girih_tensor::{Error, ErrorKind, Result};

use super::limits::RenderLimits;
use super::mark::Marks;
use super::protocol::{RenderAnswer, read_frame, write_frame};
use super::request::{RenderRequest, job};
use super::thread::{RenderThread, ThreadFault};
use super::worker::{WORKER_MEMORY_BYTES, WORKER_STACK_BYTES};
use crate::span::TextSpan;

/// The number of jobs per worker before a new one replaces it, which bounds the
/// state that templates may leave behind.
const JOBS_PER_WORKER: u32 = 256;

/// The maximum bytes read from the stderr of a worker that has ended.
const MAX_STDERR_BYTES: u64 = 4096;

/// The maximum number of timed-out threads that may still be running.
const MAX_LATE_THREADS: usize = 2;

/// Renders chat templates, in a worker process or on a thread. Either is started for
/// the first request and reused.
pub struct Renderer {
    limits: RenderLimits,
    place: RenderPlace,
}

/// Where a renderer renders.
enum RenderPlace {
    Process {
        program: PathBuf,
        arguments: Vec<OsString>,
        worker: Option<Worker>,
    },
    Thread {
        idle: Option<RenderThread>,
        /// Threads that were told to stop and may still run.
        late: Vec<JoinHandle<()>>,
    },
}

impl Renderer {
    /// Creates a renderer. Its workers run `program arguments..`, which must call
    /// [`worker_main`](super::worker_main).
    pub fn new(program: PathBuf, arguments: Vec<OsString>, limits: RenderLimits) -> Renderer {
        Renderer { limits, place: RenderPlace::Process { program, arguments, worker: None } }
    }

    /// Creates a renderer that renders on a thread of this process, for programs that
    /// cannot start a worker. Its results equal those of a worker, but it bounds less:
    ///
    /// - **Memory is not bounded.** A hostile template can exhaust it, which ends the
    ///   process. Use [`Renderer::new`] for templates that you do not trust.
    /// - A template that exceeds the time limit is an error at once, but its thread
    ///   ends only at its next loop iteration or macro call. While two such threads
    ///   are still running, requests are refused.
    /// - To bound the stack, it refuses templates that a worker renders: sources over
    ///   64 KiB or with very many operators, deep recursion, and namespaces that contain
    ///   other namespaces, macros, or values over 128 levels deep. Attributes of
    ///   namespaces can only be set with `{% set a.b = value %}`.
    pub fn in_process(limits: RenderLimits) -> Renderer {
        Renderer { limits, place: RenderPlace::Thread { idle: None, late: Vec::new() } }
    }

    /// Renders one conversation.
    ///
    /// # Errors
    /// When the template refuses the conversation (`raise_exception`), fails, or
    /// exceeds a limit. The renderer remains usable.
    pub fn render(&mut self, request: &RenderRequest<'_>) -> Result<Vec<TextSpan>> {
        let (job, marks) = job(request, &self.limits)?;
        let answer = match &mut self.place {
            RenderPlace::Process { program, arguments, worker } => {
                ask_process(worker, (program, arguments), &job, &self.limits)?
            }
            RenderPlace::Thread { idle, late } => ask_thread(idle, late, job, self.limits.time)?,
        };
        spans(answer, &marks)
    }

    /// The process id of the idle worker, if there is one.
    pub fn worker_id(&self) -> Option<u32> {
        match &self.place {
            RenderPlace::Process { worker, .. } => worker.as_ref().map(|worker| worker.child.id()),
            RenderPlace::Thread { .. } => None,
        }
    }
}

/// Sends a job to the worker process, or to a new one, and waits for the answer.
/// Stops a worker that fails.
fn ask_process(
    idle: &mut Option<Worker>,
    (program, arguments): (&Path, &[OsString]),
    job: &[u8],
    limits: &RenderLimits,
) -> Result<RenderAnswer> {
    let reused = idle.take().filter(|worker| worker.jobs_left > 0).and_then(Worker::if_alive);
    let mut worker = match reused {
        Some(worker) => worker,
        None => start(program, arguments, limits)?,
    };
    worker.jobs_left -= 1;
    match worker.ask(job.to_vec(), limits.time) {
        Ok(answer) => {
            *idle = Some(worker);
            serde_json::from_slice(&answer).map_err(|error| {
                Error::new(format!("the chat template's renderer sent an invalid answer: {}", shorten(error)))
            })
        }
        Err(fault) => Err(worker.end(&fault, limits)),
    }
}

fn start(program: &Path, arguments: &[OsString], limits: &RenderLimits) -> Result<Worker> {
    // A string of n bytes needs at most 6 n bytes in JSON, plus its wrapping.
    let answer_bytes = limits.output_bytes.saturating_mul(6).saturating_add(4096);
    Worker::start(program, arguments, answer_bytes, thread::Builder::new()).map_err(|error| {
        Error::new(format!("the chat template's renderer cannot be started: {error}")).of(program.display())
    })
}

/// Sends a job to the thread, or to a new one, and waits for the answer. Tells a
/// thread that fails to stop.
fn ask_thread(
    idle: &mut Option<RenderThread>,
    late: &mut Vec<JoinHandle<()>>,
    job: Vec<u8>,
    time: Duration,
) -> Result<RenderAnswer> {
    late.retain(|thread| !thread.is_finished());
    if late.len() >= MAX_LATE_THREADS {
        return Err(Error::new(format!(
            "{MAX_LATE_THREADS} chat templates are still running after their time limit: try again later"
        )));
    }
    let thread = match idle.take() {
        Some(thread) => thread,
        None => RenderThread::start().map_err(|error| {
            Error::new(format!("the thread of the chat template cannot be started: {error}"))
        })?,
    };
    match thread.ask(job, time) {
        Ok(answer) => {
            *idle = Some(thread);
            Ok(answer)
        }
        Err(ThreadFault::TimedOut) => {
            late.push(thread.stop());
            Err(timed_out(time))
        }
        Err(ThreadFault::Ended) => Err(Error::new("the thread of the chat template ended without an answer")),
    }
}

fn timed_out(time: Duration) -> Error {
    let time = time.as_secs_f64();
    Error::new(format!("the chat template ran longer than {time} s and was stopped"))
}

/// Converts an answer to spans or an error.
fn spans(answer: RenderAnswer, marks: &Marks<'_>) -> Result<Vec<TextSpan>> {
    match answer {
        RenderAnswer::Text(text) => Ok(marks.split(marks.up_to_end(&text)?)),
        RenderAnswer::Raised(message) => {
            let message = shorten(marks.restore(&message));
            let sentence = format!("the chat template refuses the conversation: {message}");
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
        RenderAnswer::Failed(clause) => {
            Err(Error::new(format!("the chat template {}", shorten(marks.restore(&clause)))))
        }
    }
}

/// The reason why a worker did not answer.
enum WorkerFault {
    TimedOut,
    InvalidAnswer(io::Error),
    Closed,
}

/// A running worker process and the thread that exchanges frames with it.
struct Worker {
    child: Child,
    /// `None` only while the worker is being ended.
    jobs: Option<Sender<Vec<u8>>>,
    answers: Receiver<io::Result<Vec<u8>>>,
    io_thread: Option<JoinHandle<()>>,
    stderr: ChildStderr,
    jobs_left: u32,
}

impl Worker {
    /// Starts a worker; `io_builder` makes its thread.
    fn start(
        program: &Path,
        arguments: &[OsString],
        answer_bytes: usize,
        io_builder: thread::Builder,
    ) -> io::Result<Worker> {
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (jobs, next_job) = mpsc::channel::<Vec<u8>>();
        let (answer, answers) = mpsc::channel();
        // Writing and reading may block, so a thread does both, and the caller can
        // enforce the time limit. The thread ends with the child.
        let exchange = move || {
            for job in next_job {
                let result = write_frame(&mut stdin, &job).and_then(|()| {
                    read_frame(&mut stdout, answer_bytes)?.ok_or(io::ErrorKind::UnexpectedEof.into())
                });
                if answer.send(result).is_err() {
                    return;
                }
            }
        };
        // From here on, dropping the worker kills and reaps the child.
        let mut worker =
            Worker { child, jobs: Some(jobs), answers, io_thread: None, stderr, jobs_left: JOBS_PER_WORKER };
        worker.io_thread = Some(io_builder.name("template-io".to_owned()).spawn(exchange)?);
        Ok(worker)
    }

    fn if_alive(mut self) -> Option<Worker> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    fn ask(&self, job: Vec<u8>, time: Duration) -> Result<Vec<u8>, WorkerFault> {
        let jobs = self.jobs.as_ref().expect("present until the worker is ended");
        jobs.send(job).map_err(|_| WorkerFault::Closed)?;
        match self.answers.recv_timeout(time) {
            Ok(Ok(answer)) => Ok(answer),
            // The only error that does not come from the pipe: a frame over the
            // limit.
            Ok(Err(error)) if error.kind() == io::ErrorKind::Other => Err(WorkerFault::InvalidAnswer(error)),
            Err(RecvTimeoutError::Timeout) => Err(WorkerFault::TimedOut),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(WorkerFault::Closed),
        }
    }

    /// Ends the worker and returns the error that describes its failure.
    fn end(mut self, fault: &WorkerFault, limits: &RenderLimits) -> Error {
        match fault {
            WorkerFault::TimedOut => timed_out(limits.time),
            WorkerFault::InvalidAnswer(error) => {
                Error::new(format!("the chat template's renderer sent an invalid answer: {}", shorten(error)))
            }
            WorkerFault::Closed => match self.last_status() {
                Ok(status) => self.exit_error(status),
                Err(error) => Error::new(format!("the chat template's renderer was lost: {error}")),
            },
        }
    }

    /// The exit status of a worker that closed its pipes. Its own exit status
    /// tells more than that of a kill, so it is killed only if it does not exit.
    fn last_status(&mut self) -> io::Result<ExitStatus> {
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        self.jobs = None;
        for _ in 0..200 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.child.kill()?;
        self.child.wait()
    }

    /// Describes why a worker ended, from its exit status and its stderr. The
    /// matched texts are those of Rust's runtime.
    fn exit_error(&mut self, status: ExitStatus) -> Error {
        let mut stderr = Vec::new();
        // If the pipe cannot be read, the status remains.
        let _ = self.stderr.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut stderr);
        let stderr = String::from_utf8_lossy(&stderr);
        if stderr.contains("has overflowed its stack") {
            let stack = WORKER_STACK_BYTES >> 20;
            return Error::new(format!("the chat template nests too deeply: its stack exceeded {stack} MiB"));
        }
        if stderr.contains("memory allocation of") {
            let memory = WORKER_MEMORY_BYTES >> 20;
            return Error::new(format!("the chat template needed more than {memory} MiB of memory"));
        }
        match status.signal() {
            Some(signal) => Error::new(format!("the chat template's renderer was killed by signal {signal}")),
            None => {
                let line = stderr.lines().next().unwrap_or_default();
                Error::new(format!(
                    "the chat template's renderer exited without an answer ({status}) {}",
                    shorten(line)
                ))
            }
        }
    }
}

impl Drop for Worker {
    /// Kills the process, reaps it, and joins its thread.
    fn drop(&mut self) {
        self.jobs = None;
        // Both fail only if the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(io_thread) = self.io_thread.take() {
            // A panic of the thread was already reported by its channel.
            let _ = io_thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The names of this process's children that have ended and were not reaped.
    fn zombies() -> Vec<String> {
        let own = std::process::id().to_string();
        let stats = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
            let text = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
            let (name, rest) = text.split_once('(')?.1.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').take(2).collect();
            (fields == ["Z", &own]).then(|| name.to_owned())
        });
        stats.collect()
    }

    #[test]
    fn a_worker_without_a_thread_is_killed_and_reaped() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("girih-unthreaded");
        std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
        let no_thread = thread::Builder::new().stack_size(1 << 60);
        let Err(error) = Worker::start(&program, &[], 1, no_thread) else { panic!("the thread was started") };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        // A child that was not killed ends when its pipe is closed, so this would find it as well.
        thread::sleep(Duration::from_millis(50));
        let name = "girih-unthreade";
        assert!(!zombies().iter().any(|zombie| zombie == name), "{:?}", zombies());
    }
}
