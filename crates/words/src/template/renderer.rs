//! The parent's side: starts workers, sends them jobs, ends those that run too
//! long, and says in one sentence what went wrong.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use girih_tensor::{Error, Result};

use super::limits::RenderLimits;
use super::mark::Marks;
use super::protocol::{RenderAnswer, read_frame, write_frame};
use super::request::{RenderRequest, job};
use super::worker::{WORKER_MEMORY_BYTES, WORKER_STACK_BYTES};
use crate::span::TextSpan;

/// Jobs that one worker answers before a new one takes its place: bounds what
/// a template may leave behind in it.
const JOBS_PER_WORKER: u32 = 256;

/// Bytes of a worker's dying words that are looked at.
const MAX_STDERR_BYTES: u64 = 4096;

/// Renders chat templates in a worker process, started when first needed and
/// kept for the requests that follow.
pub struct Renderer {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: RenderLimits,
    worker: Option<Worker>,
}

impl Renderer {
    /// A renderer whose workers are `program arguments..`, which must call
    /// [`worker_main`](super::worker_main).
    pub fn new(program: PathBuf, arguments: Vec<OsString>, limits: RenderLimits) -> Renderer {
        Renderer { program, arguments, limits, worker: None }
    }

    /// Renders one conversation.
    ///
    /// # Errors
    /// The template's own refusal (`raise_exception`), its faults, and each
    /// limit that it breaks. The renderer stays usable after all of them.
    pub fn render(&mut self, request: &RenderRequest<'_>) -> Result<Vec<TextSpan>> {
        let (job, marks) = job(request, &self.limits)?;
        let answer = self.ask(&job)?;
        read_answer(&answer, &marks)
    }

    /// Process id of the worker that is kept warm, if there is one.
    pub fn worker_id(&self) -> Option<u32> {
        self.worker.as_ref().map(|worker| worker.child.id())
    }

    /// Sends a job and waits for the answer; a worker that fails is ended.
    fn ask(&mut self, job: &[u8]) -> Result<Vec<u8>> {
        let warm = self.worker.take().filter(|worker| worker.jobs_left > 0);
        let mut worker = match warm.and_then(Worker::if_alive) {
            Some(worker) => worker,
            None => self.start()?,
        };
        worker.jobs_left -= 1;
        match worker.ask(job.to_vec(), self.limits.time) {
            Ok(answer) => {
                self.worker = Some(worker);
                Ok(answer)
            }
            Err(fault) => Err(worker.end(&fault, &self.limits)),
        }
    }

    fn start(&self) -> Result<Worker> {
        // A string of n bytes takes at most 6 n in JSON, plus its wrapping.
        let answer_bytes = self.limits.output_bytes.saturating_mul(6).saturating_add(4096);
        Worker::start(&self.program, &self.arguments, answer_bytes).map_err(|error| {
            Error::new(format!("the chat template's renderer cannot be started: {error}"))
                .of(self.program.display())
        })
    }
}

/// The spans of an answer, or its error.
fn read_answer(answer: &[u8], marks: &Marks<'_>) -> Result<Vec<TextSpan>> {
    let answer = serde_json::from_slice(answer)
        .map_err(|error| Error::new(format!("the chat template's renderer answered nonsense: {error}")))?;
    match answer {
        RenderAnswer::Text(text) => Ok(marks.split(&text)),
        RenderAnswer::Raised(message) => Err(Error::new(format!(
            "the chat template refuses the conversation: {}",
            marks.restore(&message)
        ))),
        RenderAnswer::Failed(clause) => {
            Err(Error::new(format!("the chat template {}", marks.restore(&clause))))
        }
    }
}

/// Why a worker did not answer.
enum WorkerFault {
    TimedOut,
    Nonsense(io::Error),
    Closed,
}

/// A running worker process and the thread that talks to it.
struct Worker {
    child: Child,
    /// `None` only when it is about to end.
    jobs: Option<Sender<Vec<u8>>>,
    answers: Receiver<io::Result<Vec<u8>>>,
    talker: Option<JoinHandle<()>>,
    stderr: ChildStderr,
    jobs_left: u32,
}

impl Worker {
    fn start(program: &PathBuf, arguments: &[OsString], answer_bytes: usize) -> io::Result<Worker> {
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
        // Both ends of a pipe may block; a thread of its own leaves the caller
        // free to watch the clock, and ends when the child does.
        let talker = thread::Builder::new().name("template-talker".to_owned()).spawn(move || {
            for job in next_job {
                let result = write_frame(&mut stdin, &job).and_then(|()| {
                    read_frame(&mut stdout, answer_bytes)?.ok_or(io::ErrorKind::UnexpectedEof.into())
                });
                if answer.send(result).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker {
            child,
            jobs: Some(jobs),
            answers,
            talker: Some(talker),
            stderr,
            jobs_left: JOBS_PER_WORKER,
        })
    }

    fn if_alive(mut self) -> Option<Worker> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    fn ask(&self, job: Vec<u8>, time: Duration) -> Result<Vec<u8>, WorkerFault> {
        let jobs = self.jobs.as_ref().expect("present until the end");
        jobs.send(job).map_err(|_| WorkerFault::Closed)?;
        match self.answers.recv_timeout(time) {
            Ok(Ok(answer)) => Ok(answer),
            // The only error that is not of the pipe: a frame over the cap.
            Ok(Err(error)) if error.kind() == io::ErrorKind::Other => Err(WorkerFault::Nonsense(error)),
            Err(RecvTimeoutError::Timeout) => Err(WorkerFault::TimedOut),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(WorkerFault::Closed),
        }
    }

    /// What was wrong with the worker, which ends with this.
    fn end(mut self, fault: &WorkerFault, limits: &RenderLimits) -> Error {
        match fault {
            WorkerFault::TimedOut => {
                let time = limits.time.as_secs_f64();
                Error::new(format!("the chat template ran longer than {time} s and was stopped"))
            }
            WorkerFault::Nonsense(error) => {
                Error::new(format!("the chat template's renderer answered nonsense: {error}"))
            }
            WorkerFault::Closed => match self.last_status() {
                Ok(status) => self.epitaph(status),
                Err(error) => Error::new(format!("the chat template's renderer was lost: {error}")),
            },
        }
    }

    /// The status of a worker that closed its pipes. It is about to end by
    /// itself, which tells more than a kill; one that does not is killed.
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

    /// Why a worker died, from its status and its last words. The words are
    /// those of Rust's runtime.
    fn epitaph(&mut self, status: ExitStatus) -> Error {
        let mut words = Vec::new();
        // An unreadable pipe leaves no words; the status still speaks.
        let _ = self.stderr.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut words);
        let words = String::from_utf8_lossy(&words);
        if words.contains("has overflowed its stack") {
            let stack = WORKER_STACK_BYTES >> 20;
            return Error::new(format!(
                "the chat template nests too deeply: it used up a stack of {stack} MiB"
            ));
        }
        if words.contains("memory allocation of") {
            let memory = WORKER_MEMORY_BYTES >> 20;
            return Error::new(format!("the chat template asked for more than {memory} MiB of memory"));
        }
        match status.signal() {
            Some(signal) => Error::new(format!("the chat template's renderer died of signal {signal}")),
            None => {
                let words = words.lines().next().unwrap_or_default();
                Error::new(format!(
                    "the chat template's renderer stopped without an answer ({status}) {words}"
                ))
            }
        }
    }
}

impl Drop for Worker {
    /// BosEos the process, reaps it, and joins the thread that talked to it.
    fn drop(&mut self) {
        self.jobs = None;
        // Both fail only if the child is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(talker) = self.talker.take() {
            // The thread only moves bytes; had it panicked, its channel told.
            let _ = talker.join();
        }
    }
}
