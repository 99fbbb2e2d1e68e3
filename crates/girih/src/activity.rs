//! What the engine of a session does, for programs that watch it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use girih_engine::Engine;
use girih_engine::cache::CacheTotals;

/// The least time between two records of an engine at work. Counting blocks takes some microseconds.
const INTERVAL: Duration = Duration::from_millis(50);

/// What the engine of a session did at its last record, which is at most some steps old.
///
/// ```
/// let session = girih::Model::open("stories260k")?.start()?;
/// let activity = session.activity();
/// assert_eq!((activity.running, activity.waiting, activity.blocks_in_use), (0, 0, 0));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineActivity {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait to run.
    pub waiting: usize,
    /// Requests whose reader is behind.
    pub suspended: usize,
    /// Replies that are complete, and whose last event was not read.
    pub unread: usize,
    /// Blocks of KV cache, of 64 positions each, of all state groups.
    pub blocks: usize,
    /// Those of them that requests hold. Others may hold state of earlier requests, which is given up
    /// when blocks run short.
    pub blocks_in_use: usize,
    /// The prompts that were looked up in the prefix cache.
    pub prompts: u64,
    /// Tokens of these prompts.
    pub prompt_tokens: u64,
    /// Those of these tokens whose state was found.
    pub cached_tokens: u64,
}

/// The record of an engine's thread.
#[derive(Debug, Default)]
pub(crate) struct ActivityRecord(Mutex<(EngineActivity, Option<Instant>)>);

impl ActivityRecord {
    /// The last record.
    pub fn get(&self) -> EngineActivity {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records an engine that has `requests` requests: always if others run or wait than before, else
    /// at intervals.
    pub fn record(&self, engine: &Engine, requests: usize) {
        let now = Instant::now();
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, waiting) = (engine.active(), engine.waiting());
        let is_due = record.1.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if !is_due && (running, waiting) == (record.0.running, record.0.waiting) {
            return;
        }
        let cache = engine.cache();
        let CacheTotals { prompts, tokens, hits, .. } = cache.totals();
        let blocks_in_use = cache.in_use().iter().sum();
        let activity = EngineActivity {
            running,
            waiting,
            suspended: requests.saturating_sub(running + waiting),
            // The session knows them.
            unread: 0,
            blocks: engine.runner().blocks().iter().map(|blocks| *blocks as usize).sum(),
            blocks_in_use,
            prompts,
            prompt_tokens: tokens,
            cached_tokens: hits,
        };
        *record = (activity, Some(now));
    }
}
