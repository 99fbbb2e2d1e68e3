//! Encoders that are served. A [`girih::ModelPool`] holds sessions, which encoders have none of, so each
//! is loaded on its own and stays loaded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih::{Embedder, Model, Result, RunOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// An encoder that is served.
pub struct ServedEncoder {
    model: Model,
    run_options: RunOptions,
    bytes: u64,
    /// Requests take turns, in the order in which they came.
    turns: Arc<Semaphore>,
    /// `None` until it is loaded.
    embedder: Mutex<Option<Embedder>>,
}

impl ServedEncoder {
    /// An encoder that is not loaded yet.
    ///
    /// # Errors
    /// When the model cannot be planned.
    pub fn new(model: Model, run_options: RunOptions) -> Result<ServedEncoder> {
        let bytes = model.plan(run_options.clone())?.memory().total();
        let turns = Arc::new(Semaphore::new(1));
        Ok(ServedEncoder { model, run_options, bytes, turns, embedder: Mutex::default() })
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
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = match self.run_options.max_wait {
            None => turn.await,
            Some(max) => timeout(max, turn).await.map_err(|_| {
                let seconds = max.as_secs_f64();
                let message = format!(
                    "the request has waited {seconds:.0} s for its turn, which is the maximum; try again later"
                );
                ApiError::queue_timeout(message).retry_after(max)
            })?,
        };
        Ok(turn.expect("it is never closed"))
    }

    /// Loads it if it is not loaded: not for a thread that serves connections.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn load(&self) -> Result<()> {
        self.with_embedder(|_| Ok(()))
    }

    /// One vector for each text in tokens, as long as `goes_on` is true. Calls `cut` first, with the texts and
    /// the maximum number of tokens of one. Not for a thread that serves connections.
    ///
    /// # Errors
    /// As [`Embedder::embed_tokens_while`], and when it cannot be loaded.
    pub fn embed(
        &self,
        texts: &mut [Vec<u32>],
        cut: impl FnOnce(&mut [Vec<u32>], usize),
        goes_on: impl Fn() -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        self.with_embedder(|embedder| {
            cut(texts, embedder.max_tokens() as usize);
            embedder.embed_tokens_while(texts, goes_on)
        })
    }

    fn with_embedder<T>(&self, work: impl FnOnce(&mut Embedder) -> Result<T>) -> Result<T> {
        let mut embedder = self.lock();
        if let Some(embedder) = &mut *embedder {
            return work(embedder);
        }
        let loaded = self.model.plan(self.run_options.clone())?.load_embedder(|_| {})?;
        work(embedder.insert(loaded))
    }

    /// A panic leaves an embedder as it was before its step, so a poisoned lock has valid contents.
    fn lock(&self) -> MutexGuard<'_, Option<Embedder>> {
        self.embedder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
