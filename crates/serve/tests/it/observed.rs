//! What a server tells of its work: metrics, the log, and the dashboard that shows the metrics.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use girih_serve::observe::{AccessLog, MetricsCompat};
use girih_serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::{Exchange, HttpReply};
use crate::model_server::{get, options, post};

/// A log in memory.
#[derive(Clone, Default)]
struct LogText(Arc<Mutex<Vec<u8>>>);

impl Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogText {
    /// The lines, when there are `count`.
    fn lines(&self, count: usize) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let text = String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text");
            if text.lines().count() >= count {
                return text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{count} lines are missing: {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn completion() -> Value {
    json!({"prompt": "Once upon a time, the secret word", "max_tokens": 5, "temperature": 0})
}

/// The value of the metric `name` with its labels.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().expect("a number")
}

#[test]
fn replies_are_counted_under_both_names() {
    let options = ServeOptions { metrics_compat: Some(MetricsCompat::Vllm), ..options() };
    let server = Server::start(options).expect("a server");
    let address = server.address();
    let usage = |reply: Value| {
        (reply["usage"]["prompt_tokens"].as_f64(), reply["usage"]["completion_tokens"].as_f64())
    };
    let reply = post(address, "/v1/completions", &completion()).json();
    assert_eq!(usage(reply.clone()), (Some(value_of(&reply, "prompt_tokens")), Some(5.0)));
    assert_eq!(post(address, "/v1/completions", &completion()).status, 200);
    assert_eq!(post(address, "/v1/completions", &json!({"prompt": "a", "n": 1000})).status, 400);
    // The engine records what it did just after the reader has its reply.
    let hits = "girih_prefix_cache_hits_total{model_name=\"stories260k\"}";
    let recorded = |metrics: &HttpReply| value(&metrics.body, hits) > 0.0;
    let metrics = (0..100)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            get(address, "/metrics")
        })
        .find(recorded)
        .expect("the second request finds the first one's prompt");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = &metrics.body;
    let model = "{model_name=\"stories260k\"}";
    for prefix in ["girih_", "vllm:"] {
        let prompt = value(text, &format!("{prefix}prompt_tokens_total{model}"));
        assert_eq!(prompt, 2.0 * value_of(&reply, "prompt_tokens"));
        assert_eq!(value(text, &format!("{prefix}generation_tokens_total{model}")), 10.0);
        assert_eq!(value(text, &format!("{prefix}time_to_first_token_seconds_count{model}")), 2.0);
        assert_eq!(value(text, &format!("{prefix}inter_token_latency_seconds_count{model}")), 8.0);
        assert_eq!(value(text, &format!("{prefix}request_generation_tokens_sum{model}")), 10.0);
        assert!(value(text, &format!("{prefix}prefix_cache_hits_total{model}")) > 0.0);
    }
    assert_eq!(value(text, &format!("girih_requests_running{model}")), 0.0);
    assert_eq!(value(text, &format!("vllm:kv_cache_usage_perc{model}")), 0.0);
    assert_eq!(
        value(text, "girih_http_requests_total{route=\"/v1/completions\",method=\"POST\",status=\"200\"}"),
        2.0
    );
    assert_eq!(
        value(text, "girih_requests_total{model_name=\"stories260k\",finished_reason=\"length\"}"),
        2.0
    );
    assert_eq!(value(text, "girih_models_loaded"), 1.0);
    // The request that reads them.
    assert_eq!(value(text, "girih_open_requests"), 1.0);
    let open =
        Exchange::begin(address, "GET /metrics", &[("accept", "application/openmetrics-text")], "").finish();
    assert!(open.body.ends_with("# EOF\n"));
    server.stop();
}

/// A number of a reply's usage.
fn value_of(reply: &Value, key: &str) -> f64 {
    reply["usage"][key].as_f64().expect("a number")
}

#[test]
fn the_log_has_counts_but_no_text_unless_asked() {
    for has_bodies in [false, true] {
        let log = LogText::default();
        let access_log = Some(AccessLog::new(log.clone(), has_bodies));
        let server = Server::start(ServeOptions { access_log, ..options() }).expect("a server");
        let address = server.address();
        let reply = post(address, "/v1/completions", &completion());
        let id = reply.header("x-request-id").expect("an id").to_owned();
        let text = reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned();
        get(address, "/v1/nothing");
        let lines = log.lines(2);
        let line = &lines[0];
        assert_eq!(line["id"], id.as_str());
        assert_eq!((&line["route"], &line["status"]), (&json!("/v1/completions"), &json!(200)));
        assert_eq!((&line["model"], &line["reply_tokens"]), (&json!("stories260k"), &json!(5)));
        assert_eq!(line["finish"], "length");
        assert!(line["first_token_ms"].as_f64() <= line["ms"].as_f64());
        let shown = line.to_string();
        assert_eq!(shown.contains("secret word"), has_bodies, "{shown}");
        assert!(!shown.contains(&text));
        assert_eq!((&lines[1]["route"], &lines[1]["code"]), (&json!("none"), &json!("not_found")));
        server.stop();
    }
}

/// The names of metrics in an expression of PromQL.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("girih_") || word.starts_with("vllm:"))
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if key == "expr" || key == "query" || key == "definition" => {
                        found.push(text.to_owned())
                    }
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_names_metrics_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards/girih.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let server = Server::start(options()).expect("a server");
    post(server.address(), "/v1/completions", &completion());
    post(server.address(), "/v1/completions", &json!({"prompt": "a", "n": 1000}));
    let text = get(server.address(), "/metrics").body;
    let known: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let used: BTreeSet<&str> = found.iter().flat_map(|expression| names(expression)).collect();
    let unknown: Vec<&&str> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "the dashboard names {unknown:?}; there are {known:?}");
    assert!(used.len() > 15, "{used:?}");
    assert_eq!(names("rate(girih_nothing_total[5m])").collect::<Vec<_>>(), ["girih_nothing_total"]);
    server.stop();
}
