//! The limit on a request's wait: which requests are refused at once and which later, and the error
//! that each of them gets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use girih::{Constraint, Model, Prompt, Request, Result};
use girih_serve::{RequestHook, ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::Exchange;
use crate::model_server::{get, options, post, refusal};

/// The maximum wait of these tests.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Allows every token, after a pause.
struct Slow;

impl Constraint for Slow {
    fn mask(&mut self, _: &mut [bool]) -> Result<()> {
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// Makes the replies of a server take 20 ms for each token.
pub fn slow_hook() -> RequestHook {
    RequestHook::new(|_: &Model, _: &Prompt, request: Request| request.constraint(Box::new(Slow)))
}

/// A server with one place, whose replies take 20 ms for each token.
pub fn slow_server() -> Server {
    let mut options = options();
    options.models[0].run_options.sequences = 1;
    options.models[0].run_options.max_wait = Some(MAX_WAIT);
    Server::start(ServeOptions { request_hook: Some(slow_hook()), ..options }).expect("a server")
}

/// A request for this number of tokens. No two prompts are equal, so none is cached.
fn body(tokens: u32, is_stream: bool) -> Value {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let prompt = format!("{} Once upon a time", NUMBER.fetch_add(1, Ordering::Relaxed));
    let ban = json!({"1": -100, "2": -100});
    json!({"prompt": prompt, "max_tokens": tokens, "stream": is_stream, "logit_bias": ban})
}

/// A reply that runs: its first event was read.
pub fn running(server: &Server, tokens: u32) -> Exchange {
    let body = body(tokens, true).to_string();
    let mut stream = Exchange::begin(server.address(), "POST /v1/completions", &[], &body);
    while !stream.line().starts_with("data: ") {}
    stream
}

/// The status of a request with three prompts, for 40 tokens each.
fn ask_several(server: &Server) -> u16 {
    let prompts = ["Once upon a time", "The dog", "One day"];
    let body = json!({"prompt": prompts, "max_tokens": 40, "logit_bias": {"1": -100, "2": -100}});
    post(server.address(), "/v1/completions", &body).status
}

/// The number that the metrics have under this name.
fn metric(server: &Server, name: &str) -> f64 {
    let text = get(server.address(), "/metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or("0").parse().expect("a number")
}

#[test]
fn a_request_that_would_wait_too_long_is_refused_at_once() {
    let server = slow_server();
    let ask = |is_stream| post(server.address(), "/v1/completions", &body(100, is_stream));
    // Without other requests, it does not matter that a reply takes longer than the maximum wait.
    assert_eq!(ask(false).status, 200);
    // It is expected to take as long as the one before it: two seconds, of which the next requests take a part.
    let first = running(&server, 100);
    let expected = metric(&server, "girih_expected_wait_seconds{model_name=\"stories260k\"}");
    assert!(expected > MAX_WAIT.as_secs_f64(), "{expected}");
    for is_stream in [false, true] {
        let begun = Instant::now();
        let refused = ask(is_stream);
        assert!(begun.elapsed() < MAX_WAIT, "it took {:?}", begun.elapsed());
        assert_eq!(refusal(&refused), (429, "expected_wait_exceeded".to_owned(), String::new()));
        let after: f64 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("a number");
        assert!(after >= 1.0 && after < expected + 1.0, "{after} of {expected}");
        assert!(refused.body.contains("the maximum is 0.5 s"), "{}", refused.body);
    }
    assert_eq!(metric(&server, "girih_refusals_total{code=\"expected_wait_exceeded\"}"), 2.0);
    // Of several prompts, the first one decides.
    assert_eq!(ask_several(&server), 429);
    // When the reply is about to end, another request may wait for it.
    let begun = Instant::now();
    while ask(false).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the place does not become free");
        thread::sleep(Duration::from_millis(50));
    }
    drop(first);
    while metric(&server, "girih_requests_running{model_name=\"stories260k\"}") > 0.0 {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ask_several(&server), 200, "the others wait for it, however long that takes");
    server.stop();
}

#[test]
fn a_request_that_has_waited_too_long_is_refused() {
    let server = slow_server();
    // No reply has ended, so nobody knows how long this one takes.
    let first = running(&server, 400);
    let begun = Instant::now();
    let late = [false, true].map(|is_stream| {
        let body = body(5, is_stream).to_string();
        Exchange::begin(server.address(), "POST /v1/completions", &[], &body)
    });
    for waiting in late {
        let refused = waiting.finish();
        assert_eq!(refusal(&refused), (429, "queue_timeout".to_owned(), String::new()));
        let after: u32 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("a number");
        assert!((1..20).contains(&after), "{after}");
    }
    let time = begun.elapsed();
    assert!(time >= 2 * MAX_WAIT && time < 2 * MAX_WAIT + Duration::from_secs(3), "it took {time:?}");
    assert_eq!(metric(&server, "girih_refusals_total{code=\"queue_timeout\"}"), 2.0);
    drop(first);
    server.stop();
}
