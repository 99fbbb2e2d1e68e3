//! Progress and notes to the program, and the weights whose reading is counted.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use girih_graph::{Error, ErrorKind, Result, WeightSource};

/// What a program may show while a model is loaded and runs.
///
/// ```
/// use girih::{Model, RunOptions, Progress};
///
/// let plan = Model::open("stories260k")?.plan(RunOptions::default())?;
/// let session = plan.start(|progress| match progress {
///     Progress::Weights { done, total } => eprint!("\r{done} of {total} bytes"),
///     Progress::Note(sentence) => eprintln!("{sentence}"),
///     _ => {}
/// })?;
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Bytes of weights were read from the model's files. Weights from the cache are not reported,
    /// so `done` may stay below `total`. Calls come from several threads, in any order.
    Weights {
        /// The bytes so far.
        done: u64,
        /// The bytes of all weights.
        total: u64,
    },
    /// A sentence for the user, such as why something is not kept.
    Note(String),
}

/// Receives progress, on any thread.
pub(crate) type ProgressCallback = Arc<dyn Fn(Progress) + Send + Sync>;

/// The connection to the program: where notes go, and whether loading was cancelled.
#[derive(Default)]
pub(crate) struct LoadControl {
    callback: OnceLock<ProgressCallback>,
    pub cancelled: AtomicBool,
}

impl LoadControl {
    /// Sets the receiver of notes, once.
    pub fn connect(&self, callback: ProgressCallback) {
        // A model is loaded once, so this is the first call.
        let _ = self.callback.set(callback);
    }

    /// Tells the program a sentence, unless loading was cancelled.
    pub fn note(&self, sentence: String) {
        if let (Some(callback), false) = (self.callback.get(), self.cancelled.load(Ordering::Relaxed)) {
            callback(Progress::Note(sentence));
        }
    }
}

impl fmt::Debug for LoadControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadControl").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

/// Weights whose reading is counted and can be cancelled.
pub(crate) struct CountedWeights<'a> {
    pub source: &'a dyn WeightSource,
    pub callback: &'a ProgressCallback,
    /// The bytes of all weights.
    pub total: u64,
    pub done: AtomicU64,
    /// Whether loading was cancelled; then reading fails.
    pub cancelled: &'a AtomicBool,
}

impl WeightSource for CountedWeights<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(cancelled());
        }
        self.source.read(name, offset, into)?;
        let bytes = into.len() as u64;
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.callback)(Progress::Weights { done, total: self.total });
        Ok(())
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.source.identity()
    }
}

/// The error of reading weights after loading was cancelled.
pub(crate) fn cancelled() -> Error {
    Error::with_kind(ErrorKind::Cancelled, "loading was cancelled")
}
