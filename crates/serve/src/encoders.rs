//! Encoders that are served. A [`girih::ModelPool`] holds sessions, which encoders have none of, so each
//! is loaded on its own and stays loaded.
//!
//! Each has a thread of its own, as a session has: a backend may pin the thread that loads weights to a CPU,
//! and counts on that thread to run the steps.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use girih::{Embedder, Error, Model, Progress, Result, RunOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;
use crate::turns::turn_within;

/// An encoder that is served.
pub struct ServedEncoder {
    model: Model,
    run_options: RunOptions,
    bytes: u64,
    /// What is told each note of loading.
    notice: fn(&str),
    /// Requests take turns, in the order in which they came.
    turns: Arc<Semaphore>,
    /// `None` until it is first used.
    thread: Mutex<Option<EncoderThread>>,
}

/// What the thread does with its encoder, which is `None` until it is loaded.
type EncoderJob = Box<dyn FnOnce(&mut Option<Embedder>) + Send>;

/// The thread that loads an encoder and runs it; dropping this ends it.
struct EncoderThread {
    /// `None` only while the thread is being ended.
    jobs: Option<Sender<EncoderJob>>,
    thread: Option<JoinHandle<()>>,
}

impl ServedEncoder {
    /// An encoder that is not loaded yet.
    ///
    /// # Errors
    /// When the model cannot be planned.
    pub fn new(model: Model, run_options: RunOptions) -> Result<ServedEncoder> {
        let bytes = model.plan(run_options.clone())?.memory().total();
        let turns = Arc::new(Semaphore::new(1));
        Ok(ServedEncoder { model, run_options, bytes, notice: |_| {}, turns, thread: Mutex::default() })
    }

    /// This encoder, which tells `notice` each note of loading behind the model's name.
    pub fn with_notice(self, notice: fn(&str)) -> ServedEncoder {
        ServedEncoder { notice, ..self }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The bytes of its memory plan.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits until the requests before this one have ended; dropping the result ends this one.
    ///
    /// # Errors
    /// When that takes longer than [`RunOptions::max_wait`]: status 429.
    pub async fn turn(&self) -> std::result::Result<OwnedSemaphorePermit, ApiError> {
        turn_within(&self.turns, self.run_options.max_wait).await
    }

    /// Loads it if it is not loaded: not for a thread that serves connections.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn load(&self) -> Result<()> {
        self.with_embedder(|_| Ok(()))
    }

    /// One vector for each text in tokens, as long as `goes_on` is true. Calls `cut` first, with the texts and
    /// the maximum number of tokens of one; returns the texts as well. Not for a thread that serves
    /// connections.
    ///
    /// # Errors
    /// As [`Embedder::embed_tokens_while`], and when it cannot be loaded.
    pub fn embed(
        &self,
        mut texts: Vec<Vec<u32>>,
        cut: impl FnOnce(&mut [Vec<u32>], usize) + Send + 'static,
        goes_on: impl Fn() -> bool + Send + 'static,
    ) -> Result<EmbeddedTexts> {
        self.with_embedder(move |embedder| {
            cut(&mut texts, embedder.max_tokens() as usize);
            let vectors = embedder.embed_tokens_while(&texts, goes_on)?;
            Ok(EmbeddedTexts { texts, vectors })
        })
    }

    /// Does this work on the encoder's thread, once it is loaded, and waits for the result.
    ///
    /// # Panics
    /// If the work panics. That leaves an embedder as it was before its step, so the thread goes on.
    fn with_embedder<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Embedder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (model, options, notice) = (self.model.clone(), self.run_options.clone(), self.notice);
        let (answer, answered) = mpsc::channel();
        let job = move |embedder: &mut Option<Embedder>| {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                if let Some(embedder) = embedder {
                    return work(embedder);
                }
                let name = model.name().to_owned();
                let told = move |progress| {
                    if let Progress::Note(sentence) = progress {
                        notice(&format!("{name}: {sentence}"));
                    }
                };
                work(embedder.insert(model.plan(options)?.load_embedder(told)?))
            }));
            // The caller waits for it.
            let _ = answer.send(outcome);
        };
        self.send(Box::new(job))?;
        match answered.recv().expect("the thread answers every job") {
            Ok(outcome) => outcome,
            Err(panic) => panic::resume_unwind(panic),
        }
    }

    /// Sends a job to the thread, which the first one starts.
    fn send(&self, job: EncoderJob) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match thread.take() {
            Some(running) => running,
            None => EncoderThread::start()?,
        };
        let running = thread.insert(running);
        let jobs = running.jobs.as_ref().expect("present until the thread is ended");
        jobs.send(job).expect("the thread runs until its jobs end");
        Ok(())
    }
}

/// Texts as tokens, and one vector for each.
#[derive(Debug)]
pub struct EmbeddedTexts {
    /// The tokens of each text, as they were cut.
    pub texts: Vec<Vec<u32>>,
    /// The vector of each text.
    pub vectors: Vec<Vec<f32>>,
}

impl EncoderThread {
    fn start() -> Result<EncoderThread> {
        let (jobs, next_job): (_, Receiver<EncoderJob>) = mpsc::channel();
        let run = move || {
            let mut embedder = None;
            for job in next_job {
                job(&mut embedder);
            }
        };
        let thread = thread::Builder::new().name("girih-encoder".to_owned()).spawn(run);
        let thread = thread
            .map_err(|error| Error::new(format!("no thread can be started for an encoder: {error}")))?;
        Ok(EncoderThread { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl Drop for EncoderThread {
    /// Waits for the thread, which drops the encoder.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Jobs catch their panics.
            let _ = thread.join();
        }
    }
}
