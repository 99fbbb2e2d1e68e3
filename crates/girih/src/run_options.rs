//! How a model is to run.

use girih_graph::description::BackendChoice;
use girih_tensor::DType;

use crate::backends::backends;

/// How a model is to run. The default suits one user on this machine.
///
/// ```
/// use girih::RunOptions;
///
/// let options = RunOptions { sequences: 4, context: Some(2048), ..RunOptions::default() };
/// assert_eq!(options.chunk, 512);
/// ```
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The backend with its options. Default: the first of [`backends`].
    ///
    /// ```
    /// use girih::{RunOptions, backend};
    ///
    /// let options = RunOptions { backend: backend("interpreter")?, ..RunOptions::default() };
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub backend: BackendChoice,
    /// The type of the KV cache. Default f32.
    ///
    /// ```
    /// use girih::{DType, RunOptions};
    ///
    /// let options = RunOptions { kv: DType::F16, ..RunOptions::default() };
    /// # let _ = options;
    /// ```
    pub kv: DType,
    /// The maximum number of tokens of a sequence; by default the model's maximum, at most
    /// 4096.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().context, None);
    /// ```
    pub context: Option<u32>,
    /// The maximum number of rows of one step. It does not affect results. Default 512.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().chunk, 512);
    /// ```
    pub chunk: u32,
    /// The maximum number of requests that run at once. Default 1.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().sequences, 1);
    /// ```
    pub sequences: u32,
    /// The maximum number of requests that wait; one more is refused. Default 64.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().waiting, 64);
    /// ```
    pub waiting: u32,
    /// The maximum number of rows of a step that yield logits, at least `sequences`. Default 1.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().output_rows, 1);
    /// ```
    pub output_rows: u32,
    /// The number of events that a [`Reply`](crate::Reply) holds for a reader; if the reader
    /// is behind by that number, its request suspends until it catches up. Default 1024.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().unread_events, 1024);
    /// ```
    pub unread_events: u32,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        let first = BackendChoice::parse(backends(), backends()[0].name);
        RunOptions {
            backend: first.expect("the first backend has one device"),
            kv: DType::F32,
            context: None,
            chunk: 512,
            sequences: 1,
            waiting: 64,
            output_rows: 1,
            unread_events: 1024,
        }
    }
}
