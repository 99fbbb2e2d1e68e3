//! What happens to a request and its replies, for the metrics and the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use girih::Stats;

use super::metrics::Metrics;

/// The maximum number of replies of a request whose times are kept.
const MAX_TIMED_REPLIES: usize = 64;

/// The maximum length of the part of a body that is logged.
const MAX_LOGGED_BODY: usize = 64 << 10;

tokio::task_local! {
    /// The record of the request that a task answers.
    static CURRENT: Arc<RequestRecord>;
}

/// What happened to a request so far.
pub(crate) struct RequestRecord {
    pub metrics: Arc<Metrics>,
    /// When it arrived.
    pub begun: Instant,
    logs_body: bool,
    facts: Mutex<RequestFacts>,
}

/// What the log and the trace say of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestFacts {
    /// The name of the tenant.
    pub tenant: Option<String>,
    pub model: Option<String>,
    pub replies: u32,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub reply_tokens: u32,
    /// Why no more tokens of the first prompt were cached.
    pub cache: Option<String>,
    pub first_token: Option<Duration>,
    /// Why the last reply ended.
    pub finish: Option<&'static str>,
    /// When the first replies waited, ran and ended.
    pub times: Vec<TimedReply>,
    /// The body, if bodies are logged.
    pub body: Option<String>,
}

/// When a reply waited, ran and ended.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only traces tell them"))]
pub(crate) struct TimedReply {
    pub queued: Instant,
    /// Absent if it ended before its prompt had been run.
    pub prefilled: Option<PrefillTimes>,
    pub ended: Instant,
    pub reply_tokens: u32,
    /// Why it ended.
    pub finish: &'static str,
}

/// When the prompt of a reply was run.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only traces tell them"))]
pub(crate) struct PrefillTimes {
    /// When its last step had ended.
    pub at: Instant,
    /// The time of its steps.
    pub time: Duration,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
}

impl RequestRecord {
    /// The record of a request that arrives now.
    pub fn new(metrics: Arc<Metrics>, logs_body: bool) -> RequestRecord {
        RequestRecord { metrics, begun: Instant::now(), logs_body, facts: Mutex::default() }
    }

    /// The record of the request that this task answers; `None` in tests without a server.
    pub fn current() -> Option<Arc<RequestRecord>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Runs the rest of a request, for which [`RequestRecord::current`] is this.
    pub async fn scope<T>(self: Arc<RequestRecord>, rest: impl Future<Output = T>) -> T {
        CURRENT.scope(self, rest).await
    }

    /// What the log says.
    pub fn facts(&self) -> MutexGuard<'_, RequestFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the body for the log, if the user asked for that.
    pub fn note_body(&self, body: &[u8]) {
        if self.logs_body {
            let part = &body[..body.len().min(MAX_LOGGED_BODY)];
            self.facts().body = Some(String::from_utf8_lossy(part).into_owned());
        }
    }
}

/// What happens to one reply of a request.
pub(crate) struct ReplyRecord {
    request: Arc<RequestRecord>,
    model: Arc<str>,
    /// Whether the prompt's tokens count: it is the first reply to its prompt.
    is_first: bool,
    tokens: u32,
    queued: Instant,
    prefilled: Option<PrefillTimes>,
    last_token: Option<Instant>,
    has_ended: bool,
}

impl ReplyRecord {
    /// The record of a reply that has been queued.
    pub fn new(request: &Arc<RequestRecord>, model: &Arc<str>, is_first: bool) -> ReplyRecord {
        let mut facts = request.facts();
        facts.model.get_or_insert_with(|| model.to_string());
        facts.replies += 1;
        drop(facts);
        let (request, model) = (Arc::clone(request), Arc::clone(model));
        ReplyRecord {
            request,
            model,
            is_first,
            tokens: 0,
            queued: Instant::now(),
            prefilled: None,
            last_token: None,
            has_ended: false,
        }
    }

    /// The prompt has been run.
    pub fn prefilled(&mut self, stats: &Stats) {
        let prompt = stats.cached.saturating_add(stats.prefill.tokens);
        self.prefilled = Some(PrefillTimes {
            at: Instant::now(),
            time: stats.prefill.time,
            prompt_tokens: prompt,
            cached_tokens: stats.cached,
        });
        if self.is_first {
            self.request.metrics.of_model(&self.model).prefilled(prompt, stats.cached);
            let mut facts = self.request.facts();
            facts.prompt_tokens = facts.prompt_tokens.saturating_add(prompt);
            facts.cached_tokens = facts.cached_tokens.saturating_add(stats.cached);
        }
    }

    /// There is another token.
    pub fn token(&mut self) {
        let now = Instant::now();
        let metrics = self.request.metrics.of_model(&self.model);
        match self.last_token.replace(now) {
            Some(last) => metrics.next_token(now - last),
            None => {
                let after = now - self.request.begun;
                metrics.first_token(after);
                self.request.facts().first_token.get_or_insert(after);
            }
        }
        self.tokens = self.tokens.saturating_add(1);
    }

    /// The reply has ended.
    pub fn finished(&mut self, reason: &'static str, stats: &Stats) {
        self.has_ended = true;
        let metrics = self.request.metrics.of_model(&self.model);
        metrics.finished(reason, self.tokens, self.request.begun.elapsed(), stats);
        let mut facts = self.request.facts();
        facts.reply_tokens = facts.reply_tokens.saturating_add(self.tokens);
        facts.finish = Some(reason);
        if facts.times.len() < MAX_TIMED_REPLIES {
            facts.times.push(TimedReply {
                queued: self.queued,
                prefilled: self.prefilled,
                ended: Instant::now(),
                reply_tokens: self.tokens,
                finish: reason,
            });
        }
    }
}

impl Drop for ReplyRecord {
    fn drop(&mut self) {
        if !self.has_ended {
            self.finished("abort", &Stats::default());
        }
    }
}
