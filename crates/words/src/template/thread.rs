//! Renders on a thread of this process, for programs that cannot start a worker.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::answer::answer;
use super::guard::GUARDED_STACK_BYTES;
use super::jinja::CompiledTemplate;
use super::protocol::RenderAnswer;

/// A running thread that answers jobs. It ends when this is dropped, or soon after.
pub struct RenderThread {
    jobs: Sender<Vec<u8>>,
    answers: Receiver<RenderAnswer>,
    /// Set when nobody waits for the answer any more.
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The reason why a thread did not answer.
pub enum ThreadFault {
    TimedOut,
    Ended,
}

impl RenderThread {
    /// Starts the thread.
    pub fn start() -> io::Result<RenderThread> {
        let (jobs, next_job) = mpsc::channel::<Vec<u8>>();
        let (sender, answers) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let run = move || {
            let mut compiled = None;
            for job in next_job {
                let compile = |source: &str| CompiledTemplate::guarded(source, &stop);
                if sender.send(answer(&job, &mut compiled, compile)).is_err() {
                    return;
                }
            }
        };
        let thread =
            thread::Builder::new().name("render".to_owned()).stack_size(GUARDED_STACK_BYTES).spawn(run)?;
        Ok(RenderThread { jobs, answers, stopped, thread })
    }

    /// Sends a job and waits for the answer.
    pub fn ask(&self, job: Vec<u8>, time: Duration) -> Result<RenderAnswer, ThreadFault> {
        self.jobs.send(job).map_err(|_| ThreadFault::Ended)?;
        self.answers.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => ThreadFault::TimedOut,
            RecvTimeoutError::Disconnected => ThreadFault::Ended,
        })
    }

    /// Tells the thread to end. Its handle says when it has.
    pub fn stop(self) -> JoinHandle<()> {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread
    }
}
