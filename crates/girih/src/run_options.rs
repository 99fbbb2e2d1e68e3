//! How a model is to run.

use std::path::PathBuf;
use std::time::Duration;

use girih_graph::description::BackendChoice;
use girih_tensor::DType;

use crate::backends::backends;
use crate::cache_observer::CacheObserver;
use crate::drafts::Drafts;

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
    /// The backend with its options. Default: the first of [`backends`], whose rounding of activations may depend
    /// on the processor ([`Plan::machine_default`](crate::Plan::machine_default)).
    ///
    /// ```
    /// use girih::{RunOptions, backend};
    ///
    /// # #[cfg(feature = "cpu")] {
    /// let cpu = backend("cpu")?.with_threads(Some(2)).with("act-precision", "f32")?;
    /// let options = RunOptions { backend: cpu, ..RunOptions::default() };
    /// # }
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub backend: BackendChoice,
    /// The type of the KV cache: F32, F16, BF16, Q8_0 or Q4_0; an encoder has none. Default `None`: F16. A
    /// request whose keys or values exceed the range of the type fails
    /// ([`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange)); F32 holds them all.
    ///
    /// ```
    /// use girih::{DType, RunOptions};
    ///
    /// let options = RunOptions { kv: Some(DType::F32), ..RunOptions::default() };
    /// # let _ = options;
    /// ```
    pub kv: Option<DType>,
    /// The maximum number of tokens of a sequence, prompt and reply together. By default the
    /// model's maximum, at most 4096, because the KV cache for all of it is allocated at the
    /// start.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().context, None);
    /// ```
    pub context: Option<u32>,
    /// The maximum number of rows (tokens) of one step. Only the `npu` backend's results depend on
    /// it. A step of an encoder has room for `context` tokens if that is more. Default 512.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().chunk, 512);
    /// ```
    pub chunk: u32,
    /// The maximum number of requests that run at once; others wait. Default 1.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().sequences, 1);
    /// ```
    pub sequences: u32,
    /// The maximum number of requests that wait. A request is refused if `sequences + waiting`
    /// have not ended, those included whose reply is not read. Default 64.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().waiting, 64);
    /// ```
    pub waiting: u32,
    /// The maximum time for which a request waits until it begins. One is refused
    /// ([`ErrorKind::WaitTooLong`](crate::ErrorKind::WaitTooLong)) if it is expected to wait longer, as
    /// [`Session::expected_wait`](crate::Session::expected_wait) says, and fails in the same way if it
    /// has waited for twice this time. Of several replies to one request, this is about the first. A request's own limit
    /// ([`TimeLimits::queue`](crate::TimeLimits::queue)) takes the place of this one. Default `None`: no limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use girih::RunOptions;
    ///
    /// let options = RunOptions { max_wait: Some(Duration::from_secs(60)), ..RunOptions::default() };
    /// ```
    pub max_wait: Option<Duration>,
    /// The time that a step with rows of prompts should take beside running replies, which wait for it: prompts then get as many rows
    /// of a step as earlier ones ran in this time, by the work of their rows, at least 32 and at most `chunk`. No reply depends
    /// on it. Devices with programs for several numbers of rows keep to `chunk`. Default `None`: `chunk`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use girih::RunOptions;
    ///
    /// let options = RunOptions { step_time: Some(Duration::from_millis(100)), ..RunOptions::default() };
    /// ```
    pub step_time: Option<Duration>,
    /// The maximum number of waiting requests of one [`Tenant`](crate::Tenant). Default `u32::MAX`:
    /// no limit but `waiting`.
    ///
    /// ```
    /// use girih::RunOptions;
    ///
    /// let options = RunOptions { tenant_waiting: 8, ..RunOptions::default() };
    /// ```
    pub tenant_waiting: u32,
    /// The maximum number of requests of one tenant that have not ended, those included whose reply is
    /// not read: so no tenant can hold all places. Default `u32::MAX`: no limit of its own.
    ///
    /// ```
    /// use girih::RunOptions;
    ///
    /// let options = RunOptions { tenant_requests: 8, ..RunOptions::default() };
    /// ```
    pub tenant_requests: u32,
    /// The maximum number of output rows (rows of logits) of one step. Values below `sequences`
    /// are raised to it, values above `chunk` are lowered. Drafts need one more row for each
    /// drafted token; `drafts` adds them. A prompt whose log-probabilities were asked for advances by
    /// as many tokens in a step as it has output rows, so programs that expect such requests allow
    /// some: each takes four bytes for each token of the vocabulary. Default 1.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().output_rows, 1);
    /// ```
    pub output_rows: u32,
    /// What drafts tokens for requests without a drafter of their own. Default [`Drafts::Off`].
    ///
    /// ```
    /// use girih::{Drafts, RunOptions};
    ///
    /// let options = RunOptions { drafts: Drafts::PromptLookup, ..RunOptions::default() };
    /// # let _ = options;
    /// ```
    pub drafts: Drafts,
    /// The maximum number of tokens that `drafts` drafts for a sequence at once, at least 1; fewer
    /// are drafted if the reply does not accept them. Each takes an output row. Default 15.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().draft_max, 15);
    /// ```
    pub draft_max: u32,
    /// Where sessions keep the state of prompts and replies for later sessions; only models that are
    /// read from files have one. Default none.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().prompt_cache, None);
    /// ```
    pub prompt_cache: Option<PromptCache>,
    /// Whether requests may give rows that replace the embeddings of tokens, such as those of
    /// images ([`EmbeddedRows`](crate::engine::EmbeddedRows)): for programs that call the engine
    /// themselves. Default false.
    ///
    /// ```
    /// assert!(!girih::RunOptions::default().given_rows);
    /// ```
    pub given_rows: bool,
    /// Whether requests may have images ([`Request::images`](crate::Request::images)). The image tower is part of the
    /// memory plan, and is loaded when the first image comes. Default false.
    ///
    /// ```
    /// assert!(!girih::RunOptions::default().images);
    /// ```
    pub images: bool,
    /// The number of unread events at which a request is suspended until its reader catches up.
    /// Default 1024.
    ///
    /// ```
    /// assert_eq!(girih::RunOptions::default().unread_events, 1024);
    /// ```
    pub unread_events: u32,
    /// What is told which blocks of tokens the prefix caches of sessions gain and lose. It costs nothing without one.
    /// Default none.
    ///
    /// ```
    /// assert!(girih::RunOptions::default().cache_observer.is_none());
    /// ```
    pub cache_observer: Option<CacheObserver>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        let first = BackendChoice::parse(backends(), backends()[0].name);
        RunOptions {
            backend: first.expect("it is in the list"),
            kv: None,
            context: None,
            chunk: 512,
            sequences: 1,
            waiting: 64,
            max_wait: None,
            step_time: None,
            tenant_waiting: u32::MAX,
            tenant_requests: u32::MAX,
            output_rows: 1,
            drafts: Drafts::Off,
            draft_max: 15,
            prompt_cache: None,
            given_rows: false,
            images: false,
            unread_events: 1024,
            cache_observer: None,
        }
    }
}

/// A folder in which a session keeps the state of prompts and replies for later sessions: it reads
/// them when the model is loaded, and writes them when the last handle is dropped.
///
/// ```
/// use girih::{PromptCache, RunOptions};
///
/// let cache = PromptCache { folder: "/var/cache/prompts".into(), limit: 1 << 30 };
/// let options = RunOptions { prompt_cache: Some(cache), ..RunOptions::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCache {
    /// The folder. It is created for this user alone if it does not exist.
    pub folder: PathBuf,
    /// The maximum size of its files in bytes; the ones used least recently are removed first.
    pub limit: u64,
}
