//! Encoders that are served. A [`girih::ModelPool`] holds sessions, which encoders have none of, so each
//! is loaded on its own and stays loaded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use girih::{Embedder, Model, Result, RunOptions};

/// An encoder that is served.
pub struct ServedEncoder {
    model: Model,
    run_options: RunOptions,
    bytes: u64,
    /// `None` until it is loaded. Requests take turns.
    embedder: Mutex<Option<Embedder>>,
}

impl ServedEncoder {
    /// An encoder that is not loaded yet.
    ///
    /// # Errors
    /// When the model cannot be planned.
    pub fn new(model: Model, run_options: RunOptions) -> Result<ServedEncoder> {
        let bytes = model.plan(run_options.clone())?.memory().total();
        Ok(ServedEncoder { model, run_options, bytes, embedder: Mutex::default() })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The bytes of its memory plan.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
