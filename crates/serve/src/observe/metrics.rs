//! What the server counts and measures, in the text formats of Prometheus. The buckets of
//! histograms are vLLM's (`vllm/v1/metrics/buckets.py`), so that both can share a dashboard.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use girih::{BLOCK_POSITIONS, EngineFaults, LoadedModel, Stats};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::kv_events::KvEventCounts;

/// Labels and their values.
type LabelSet<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<LabelSet<N>, Counter>;
type Gauges<const N: usize> = Family<LabelSet<N>, Gauge<f64, AtomicU64>>;
type Histograms = Family<LabelSet<1>, Histogram, fn() -> Histogram>;

/// Seconds from a request to the first token of its reply.
const FIRST_TOKEN_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// Seconds between two tokens.
const BETWEEN_TOKENS_BUCKETS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// Seconds from a request to the end of its reply.
const WHOLE_BUCKETS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// Tokens of a prompt or a reply.
const TOKENS_BUCKETS: [f64; 17] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

/// Names under which metrics are reported beside girih's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsCompat {
    /// vLLM's, which routers and dashboards for it read.
    Vllm,
}

/// What the server counts and measures.
pub struct Metrics {
    registry: Registry,
    compat: Option<MetricsCompat>,
    /// Held while gauges are set and read, so that two readers do not mix.
    reading: Mutex<()>,
    http_requests: Counters<3>,
    refusals: Counters<1>,
    disconnects: Counter,
    spans: Counters<1>,
    open_requests: Gauge,
    replies: Counters<2>,
    running: Gauges<1>,
    waiting: Gauges<1>,
    suspended: Gauges<1>,
    unread: Gauges<1>,
    expected_wait: Gauges<1>,
    first_token: Histograms,
    between_tokens: Histograms,
    whole: Histograms,
    prompt_lengths: Histograms,
    reply_lengths: Histograms,
    prompt_tokens: Counters<1>,
    cached_tokens: Counters<1>,
    reply_tokens: Counters<1>,
    drafted_tokens: Counters<1>,
    accepted_tokens: Counters<1>,
    requeues: Counters<1>,
    cache_queries: Counters<1>,
    cache_hits: Counters<1>,
    cache_usage: Gauges<1>,
    blocks: Gauges<1>,
    models_loaded: Gauge,
    models_down: Gauge,
    engine_faults: Counters<1>,
    model_bytes: Gauges<1>,
    build: Gauges<1>,
    cache_config: Gauges<3>,
    kv_event_messages: Counter,
    kv_event_subscribers: Gauge,
    kv_event_drops: Counter,
}

impl Metrics {
    /// Metrics with nothing counted.
    pub fn new(compat: Option<MetricsCompat>) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::default(),
            compat,
            reading: Mutex::default(),
            http_requests: Family::default(),
            refusals: Family::default(),
            disconnects: Counter::default(),
            spans: Family::default(),
            open_requests: Gauge::default(),
            replies: Family::default(),
            running: Family::default(),
            waiting: Family::default(),
            suspended: Family::default(),
            unread: Family::default(),
            expected_wait: Family::default(),
            first_token: Family::new_with_constructor(|| Histogram::new(FIRST_TOKEN_BUCKETS)),
            between_tokens: Family::new_with_constructor(|| Histogram::new(BETWEEN_TOKENS_BUCKETS)),
            whole: Family::new_with_constructor(|| Histogram::new(WHOLE_BUCKETS)),
            prompt_lengths: Family::new_with_constructor(|| Histogram::new(TOKENS_BUCKETS)),
            reply_lengths: Family::new_with_constructor(|| Histogram::new(TOKENS_BUCKETS)),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            reply_tokens: Family::default(),
            drafted_tokens: Family::default(),
            accepted_tokens: Family::default(),
            requeues: Family::default(),
            cache_queries: Family::default(),
            cache_hits: Family::default(),
            cache_usage: Family::default(),
            blocks: Family::default(),
            models_loaded: Gauge::default(),
            models_down: Gauge::default(),
            engine_faults: Family::default(),
            model_bytes: Family::default(),
            build: Family::default(),
            cache_config: Family::default(),
            kv_event_messages: Counter::default(),
            kv_event_subscribers: Gauge::default(),
            kv_event_drops: Counter::default(),
        };
        metrics.build.get_or_create(&[("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1.0);
        metrics.register_server();
        metrics.register_kv_events();
        metrics.register_replies();
        metrics.register_tokens();
        metrics
    }

    fn add(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry.register(name, help, metric);
    }

    /// Adds a metric, and once more under the name that vLLM 0.33 has for it if that was asked for.
    fn add_both(&mut self, name: &str, vllm: &str, help: &str, metric: impl Metric + Clone) {
        if self.compat == Some(MetricsCompat::Vllm) {
            self.add(vllm, help, metric.clone());
        }
        self.add(name, help, metric);
    }

    fn register_server(&mut self) {
        self.add("girih_build_info", "The version of girih", self.build.clone());
        self.add("girih_http_requests", "Requests by route, method and status", self.http_requests.clone());
        self.add("girih_refusals", "Requests that were refused, by error code", self.refusals.clone());
        self.add("girih_disconnects", "Requests whose client left before the end", self.disconnects.clone());
        self.add("girih_spans", "Spans of traces, by what became of them", self.spans.clone());
        self.add("girih_open_requests", "Requests whose response has not ended", self.open_requests.clone());
        self.add("girih_models_loaded", "Models that are loaded", self.models_loaded.clone());
        let help = "Models whose engine has ended by a fault, with no other one ready";
        self.add("girih_models_down", help, self.models_down.clone());
        self.add("girih_engine_faults", "Engines that have ended by a fault", self.engine_faults.clone());
        self.add(
            "girih_model_memory_bytes",
            "Bytes of a loaded model's memory plan",
            self.model_bytes.clone(),
        );
    }

    fn register_kv_events(&mut self) {
        self.add(
            "girih_kv_event_messages",
            "Messages with events of the KV cache",
            self.kv_event_messages.clone(),
        );
        self.add(
            "girih_kv_event_subscribers",
            "Subscribers to events of the KV cache",
            self.kv_event_subscribers.clone(),
        );
        self.add(
            "girih_kv_event_subscribers_dropped",
            "Subscribers to events of the KV cache that were dropped because they did not read",
            self.kv_event_drops.clone(),
        );
    }

    fn register_replies(&mut self) {
        self.add_both(
            "girih_requests_running",
            "vllm:num_requests_running",
            "Replies that run",
            self.running.clone(),
        );
        self.add_both(
            "girih_requests_waiting",
            "vllm:num_requests_waiting",
            "Replies that wait to run",
            self.waiting.clone(),
        );
        self.add("girih_requests_suspended", "Replies whose reader is behind", self.suspended.clone());
        self.add("girih_requests_unread", "Replies that are complete, but unread", self.unread.clone());
        let help = "Seconds for which another request is expected to wait until it begins";
        self.add("girih_expected_wait_seconds", help, self.expected_wait.clone());
        self.add_both(
            "girih_requests",
            "vllm:request_success",
            "Replies that ended, by the reason",
            self.replies.clone(),
        );
        self.add_both(
            "girih_time_to_first_token_seconds",
            "vllm:time_to_first_token_seconds",
            "Seconds from a request to the first token of its reply",
            self.first_token.clone(),
        );
        self.add_both(
            "girih_inter_token_latency_seconds",
            "vllm:inter_token_latency_seconds",
            "Seconds between two tokens of a reply",
            self.between_tokens.clone(),
        );
        self.add_both(
            "girih_request_latency_seconds",
            "vllm:e2e_request_latency_seconds",
            "Seconds from a request to the end of its reply",
            self.whole.clone(),
        );
        self.add_both(
            "girih_request_prompt_tokens",
            "vllm:request_prompt_tokens",
            "Tokens of a prompt",
            self.prompt_lengths.clone(),
        );
        self.add_both(
            "girih_request_generation_tokens",
            "vllm:request_generation_tokens",
            "Tokens of a reply",
            self.reply_lengths.clone(),
        );
    }

    fn register_tokens(&mut self) {
        self.add_both(
            "girih_prompt_tokens",
            "vllm:prompt_tokens",
            "Tokens of prompts, cached ones included",
            self.prompt_tokens.clone(),
        );
        self.add(
            "girih_cached_tokens",
            "Tokens of prompts that were in the prefix cache",
            self.cached_tokens.clone(),
        );
        self.add_both(
            "girih_generation_tokens",
            "vllm:generation_tokens",
            "Tokens of replies",
            self.reply_tokens.clone(),
        );
        self.add_both(
            "girih_draft_tokens",
            "vllm:spec_decode_num_draft_tokens",
            "Drafted tokens that were run",
            self.drafted_tokens.clone(),
        );
        self.add_both(
            "girih_accepted_tokens",
            "vllm:spec_decode_num_accepted_tokens",
            "Drafted tokens that replies kept",
            self.accepted_tokens.clone(),
        );
        self.add_both(
            "girih_requeues",
            "vllm:num_preemptions",
            "Replies that went back to the queue because their state was lost",
            self.requeues.clone(),
        );
        self.add_both(
            "girih_prefix_cache_queries",
            "vllm:prefix_cache_queries",
            "Tokens that were looked up in the prefix cache",
            self.cache_queries.clone(),
        );
        self.add_both(
            "girih_prefix_cache_hits",
            "vllm:prefix_cache_hits",
            "Tokens that were found in the prefix cache",
            self.cache_hits.clone(),
        );
        self.add_both(
            "girih_kv_cache_usage_ratio",
            "vllm:kv_cache_usage_perc",
            "The share of the KV cache that requests hold, from 0 to 1",
            self.cache_usage.clone(),
        );
        self.add("girih_kv_cache_blocks", "Blocks of KV cache, of 64 positions each", self.blocks.clone());
        if self.compat == Some(MetricsCompat::Vllm) {
            self.add("vllm:cache_config_info", "The size of the KV cache", self.cache_config.clone());
            self.register_old_names();
        }
    }

    /// Names of vLLM before 0.10, which its production stack reads (`src/vllm_router/stats/engine_stats.py`).
    fn register_old_names(&mut self) {
        let help = "As kv_cache_usage_perc";
        self.add("vllm:gpu_cache_usage_perc", help, self.cache_usage.clone());
        let help = "As prefix_cache_queries";
        self.add("vllm:gpu_prefix_cache_queries", help, self.cache_queries.clone());
        let help = "As prefix_cache_hits";
        self.add("vllm:gpu_prefix_cache_hits", help, self.cache_hits.clone());
    }

    /// Counts a response, or a request whose client left before one (status 499).
    pub(crate) fn count_http(&self, route: &str, method: &str, status: u16, code: Option<&str>) {
        let labels =
            [("route", route.to_owned()), ("method", method.to_owned()), ("status", status.to_string())];
        self.http_requests.get_or_create(&labels).inc();
        if let Some(code) = code {
            self.refusals.get_or_create(&[("code", code.to_owned())]).inc();
        }
    }

    /// Sets how often engines have ended by a fault.
    pub(crate) fn set_engine_faults(&self, faults: &[EngineFaults]) {
        self.models_down.set(faults.iter().filter(|faults| faults.is_down).count() as i64);
        for EngineFaults { name, count, .. } in faults {
            let counter = self.engine_faults.get_or_create(&[("model_name", name.clone())]);
            counter.inner().store(*count, Ordering::Relaxed);
        }
    }

    /// Sets what was published of the KV cache.
    pub(crate) fn set_kv_events(&self, counts: KvEventCounts) {
        self.kv_event_messages.inner().store(counts.messages, Ordering::Relaxed);
        self.kv_event_subscribers.set(counts.subscribers as i64);
        self.kv_event_drops.inner().store(counts.dropped, Ordering::Relaxed);
    }

    /// Counts a client that left before the end of its response.
    pub(crate) fn count_disconnect(&self) {
        self.disconnects.inc();
    }

    /// Counts spans of traces that were `exported` or `dropped`.
    #[cfg(feature = "otlp")]
    pub(crate) fn count_spans(&self, outcome: &'static str, count: usize) {
        if count > 0 {
            self.spans.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count as u64);
        }
    }

    /// What the replies of a model count.
    pub(crate) fn of_model(&self, model: &str) -> ModelMetrics<'_> {
        ModelMetrics { metrics: self, model: [("model_name", model.to_owned())] }
    }

    /// The metrics as text: in the OpenMetrics format, or in that of Prometheus 0.0.4, which knows
    /// neither `# EOF` nor names of counters without `_total`.
    pub fn render(&self, loaded: &[LoadedModel], open_requests: usize, is_open_metrics: bool) -> String {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.observe(loaded, open_requests);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes any text");
        if is_open_metrics { text } else { to_prometheus(&text) }
    }

    /// Sets what follows from the present state.
    fn observe(&self, loaded: &[LoadedModel], open_requests: usize) {
        self.open_requests.set(open_requests as i64);
        self.models_loaded.set(loaded.len() as i64);
        for gauges in [
            &self.running,
            &self.waiting,
            &self.suspended,
            &self.unread,
            &self.expected_wait,
            &self.cache_usage,
            &self.blocks,
            &self.model_bytes,
        ] {
            gauges.clear();
        }
        self.cache_config.clear();
        for LoadedModel { name, bytes, activity, expected_wait, .. } in loaded {
            let model = [("model_name", name.clone())];
            self.model_bytes.get_or_create(&model).set(*bytes as f64);
            self.running.get_or_create(&model).set(activity.running as f64);
            self.waiting.get_or_create(&model).set(activity.waiting as f64);
            self.suspended.get_or_create(&model).set(activity.suspended as f64);
            self.unread.get_or_create(&model).set(activity.unread as f64);
            self.expected_wait.get_or_create(&model).set(expected_wait.as_secs_f64());
            self.blocks.get_or_create(&model).set(activity.blocks as f64);
            let usage = activity.blocks_in_use as f64 / activity.blocks.max(1) as f64;
            self.cache_usage.get_or_create(&model).set(usage);
            let set = |counters: &Counters<1>, value| {
                counters.get_or_create(&model).inner().store(value, Ordering::Relaxed);
            };
            set(&self.cache_queries, activity.prompt_tokens);
            set(&self.cache_hits, activity.cached_tokens);
            let [model] = model;
            let blocks = activity.blocks.to_string();
            let config = [model, ("block_size", BLOCK_POSITIONS.to_string()), ("num_gpu_blocks", blocks)];
            self.cache_config.get_or_create(&config).set(1.0);
        }
    }
}

/// What the replies of a model count.
pub(crate) struct ModelMetrics<'a> {
    metrics: &'a Metrics,
    model: LabelSet<1>,
}

impl ModelMetrics<'_> {
    /// Records the first token of a reply after this time.
    pub fn first_token(&self, after: Duration) {
        self.metrics.first_token.get_or_create(&self.model).observe(after.as_secs_f64());
    }

    /// Records another token after this time.
    pub fn next_token(&self, after: Duration) {
        self.metrics.between_tokens.get_or_create(&self.model).observe(after.as_secs_f64());
    }

    /// Records the end of a prefill.
    pub fn prefilled(&self, prompt: u32, cached: u32) {
        self.metrics.prompt_tokens.get_or_create(&self.model).inc_by(u64::from(prompt));
        self.metrics.cached_tokens.get_or_create(&self.model).inc_by(u64::from(cached));
        self.metrics.prompt_lengths.get_or_create(&self.model).observe(f64::from(prompt));
    }

    /// Records the end of a reply with `tokens` tokens after this time.
    pub fn finished(&self, reason: &str, tokens: u32, after: Duration, stats: &Stats) {
        let metrics = self.metrics;
        let [model] = &self.model;
        metrics.replies.get_or_create(&[model.clone(), ("finished_reason", reason.to_owned())]).inc();
        metrics.reply_tokens.get_or_create(&self.model).inc_by(u64::from(tokens));
        metrics.reply_lengths.get_or_create(&self.model).observe(f64::from(tokens));
        metrics.whole.get_or_create(&self.model).observe(after.as_secs_f64());
        metrics.drafted_tokens.get_or_create(&self.model).inc_by(u64::from(stats.drafted));
        metrics.accepted_tokens.get_or_create(&self.model).inc_by(u64::from(stats.accepted));
        metrics.requeues.get_or_create(&self.model).inc_by(u64::from(stats.requeued));
    }
}

/// OpenMetrics as the text format of Prometheus 0.0.4: counters are declared with `_total`, and
/// there is no end mark.
fn to_prometheus(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let declared = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = declared.and_then(|rest| rest.split(' ').next());
        match name.filter(|name| counters.contains(name)) {
            Some(name) => out.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_declared_as_each_format_wants() {
        let metrics = Metrics::new(Some(MetricsCompat::Vllm));
        metrics.count_http("/v1/models", "GET", 200, None);
        metrics.count_http("/v1/models", "GET", 401, Some("invalid_api_key"));
        let open = metrics.render(&[], 3, true);
        assert!(open.ends_with("# EOF\n"));
        assert!(open.contains("# TYPE girih_http_requests counter\n"));
        let plain = metrics.render(&[], 3, false);
        assert!(!plain.contains("# EOF"));
        assert!(plain.contains("# TYPE girih_http_requests_total counter\n"), "{plain}");
        for text in [&open, &plain] {
            let line = "girih_http_requests_total{route=\"/v1/models\",method=\"GET\",status=\"401\"} 1\n";
            assert!(text.contains(line), "{text}");
            assert!(text.contains("girih_refusals_total{code=\"invalid_api_key\"} 1\n"));
            assert!(text.contains("girih_open_requests 3\n"));
        }
    }

    #[test]
    fn a_reply_counts_under_both_names() {
        let metrics = Metrics::new(Some(MetricsCompat::Vllm));
        let model = metrics.of_model("lily");
        model.prefilled(10, 4);
        model.first_token(Duration::from_millis(30));
        model.next_token(Duration::from_millis(7));
        model.finished("stop", 2, Duration::from_millis(400), &Stats::default());
        let text = metrics.render(&[], 0, false);
        for line in [
            "girih_prompt_tokens_total{model_name=\"lily\"} 10",
            "vllm:prompt_tokens_total{model_name=\"lily\"} 10",
            "girih_cached_tokens_total{model_name=\"lily\"} 4",
            "vllm:generation_tokens_total{model_name=\"lily\"} 2",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.02\",model_name=\"lily\"} 0",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.04\",model_name=\"lily\"} 1",
            "vllm:inter_token_latency_seconds_bucket{le=\"0.01\",model_name=\"lily\"} 1",
            "vllm:e2e_request_latency_seconds_bucket{le=\"0.5\",model_name=\"lily\"} 1",
            "vllm:request_success_total{model_name=\"lily\",finished_reason=\"stop\"} 1",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in\n{text}");
        }
        assert!(!Metrics::new(None).render(&[], 0, false).contains("vllm:"));
    }
}
