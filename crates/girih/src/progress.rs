//! Progress and notes to the program, and the weights whose reading is counted.

use std::cell::Cell;
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
    /// A sentence for the user, such as why packed weights are not cached.
    Note(String),
    /// A sentence about what loading measured, for people who ask for it.
    Detail(String),
}

/// A program's function that receives progress, on any thread.
#[derive(Clone)]
pub(crate) struct ProgressCallback(Arc<dyn Fn(Progress) + Send + Sync>);

thread_local! {
    /// Whether this thread runs a program's callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Records the end of a callback, even if it panics.
struct EndOfCallback;

impl Drop for EndOfCallback {
    fn drop(&mut self) {
        IN_CALLBACK.set(false);
    }
}

/// Whether this thread runs a program's callback; then it must not wait for other threads of
/// the session, which may wait for the callback.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

impl ProgressCallback {
    /// A callback that calls `tell`.
    pub fn new(tell: impl Fn(Progress) + Send + Sync + 'static) -> ProgressCallback {
        ProgressCallback(Arc::new(tell))
    }

    /// Calls it.
    fn call(&self, progress: Progress) {
        IN_CALLBACK.set(true);
        let _end = EndOfCallback;
        (self.0)(progress);
    }
}

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
        self.tell(Progress::Note(sentence));
    }

    /// As [`LoadControl::note`], about what was measured.
    pub fn detail(&self, sentence: String) {
        self.tell(Progress::Detail(sentence));
    }

    fn tell(&self, progress: Progress) {
        if let (Some(callback), false) = (self.callback.get(), self.cancelled.load(Ordering::Relaxed)) {
            callback.call(progress);
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
        self.callback.call(Progress::Weights { done, total: self.total });
        Ok(())
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.source.identity()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged()
    }
}

/// The error of reading weights after loading was cancelled.
pub(crate) fn cancelled() -> Error {
    Error::with_kind(ErrorKind::Cancelled, "loading was cancelled")
}
