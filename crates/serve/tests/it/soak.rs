//! Mixed requests for a long time: each reply has the library's bytes, and memory does not grow.
//!
//! Ten minutes, or as many seconds as `GIRIH_SOAK_SECONDS` says:
//! `cargo test -p girih-serve --release --test it -- --ignored --nocapture soak`

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use girih::{BUILT_IN, Grammar, Model, Request, Sampling, Session};
use girih_serve::Server;
use serde_json::{Value, json};

use crate::client::Exchange;
use crate::draw::Draw;
use crate::model_server::{get, options, post};

/// The requests that run or wait at a time.
const AT_ONCE: usize = 8;

/// The variants of each kind of request.
const VARIANTS: u64 = 12;

/// How much more resident memory the process may have at the end than after a fifth of the time.
fn allowed_growth(bytes: u64) -> u64 {
    bytes / 100 + (4 << 20)
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 3, "maximum": 12}}, "required": ["name", "age"],
    "additionalProperties": false}"#;

/// A request, and the texts of the replies to it.
struct KnownRequest {
    path: &'static str,
    body: Value,
    texts: Vec<String>,
}

/// A prompt of a variant: some are long, and many begin alike.
fn prompt(variant: u64) -> String {
    let beginning = "Once upon a time, there was a little girl named Lily. She liked to play outside. ";
    let name = ["Tom", "Sue", "Ben", "Mia"][variant as usize % 4];
    beginning.repeat(variant as usize % 3) + name + " had a"
}

/// The library's replies with seeds that begin with `seed`.
fn library(session: &Session, request: impl Fn() -> Request, seed: u64, count: u64) -> Vec<String> {
    let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let replies = (seed..seed + count).map(|seed| session.generate(request().sampling(sampling(seed))));
    replies.map(|reply| reply.unwrap().text().unwrap()).collect()
}

/// The requests of a variant.
fn requests_of(session: &Session, variant: u64) -> Vec<KnownRequest> {
    let text = prompt(variant);
    let messages = json!([{"role": "user", "content": text}]);
    let request = || Request::new(text.as_str()).max_tokens(8 + 4 * variant as u32);
    let length = 8 + 4 * variant;
    let sampled = json!({"model": BUILT_IN, "temperature": 1, "seed": variant, "max_tokens": length});
    let with = |more: Value| {
        let mut body = sampled.clone();
        let Value::Object(more) = more else { panic!("no object") };
        body.as_object_mut().unwrap().extend(more);
        body
    };
    let schema = || request().max_tokens(200).grammar(Grammar::JsonSchema(SCHEMA.to_owned()));
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": serde_json::from_str::<Value>(SCHEMA).unwrap()}});
    let known = |path, body, texts| KnownRequest { path, body, texts };
    vec![
        known(
            "/v1/completions",
            with(json!({"prompt": text, "n": 2})),
            library(session, request, variant, 2),
        ),
        known(
            "/v1/completions",
            with(json!({"prompt": text, "stop": ["a", "zebra"], "logprobs": 3})),
            library(session, || request().stop("a").stop("zebra"), variant, 1),
        ),
        known(
            "/v1/chat/completions",
            with(json!({"messages": messages})),
            library(session, request, variant, 1),
        ),
        known(
            "/v1/chat/completions",
            with(json!({"messages": messages, "response_format": format, "max_tokens": 200})),
            library(session, schema, variant, 1),
        ),
    ]
}

/// The texts of a reply, by choice.
fn texts(pieces: &[Value], count: usize) -> Vec<String> {
    let mut texts = vec![String::new(); count];
    for choice in pieces.iter().flat_map(|piece| piece["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        let places = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        texts[index] += places.iter().find_map(|place| place.as_str()).unwrap_or_default();
    }
    texts
}

/// Sends a request, whole or as a stream, and compares its texts.
fn check(address: SocketAddr, request: &KnownRequest, is_stream: bool) {
    let mut body = request.body.clone();
    body["stream"] = json!(is_stream);
    let reply = post(address, request.path, &body);
    assert_eq!(reply.status, 200, "{body} {reply:?}");
    let pieces = if is_stream { reply.events() } else { vec![reply.json()] };
    assert_eq!(texts(&pieces, request.texts.len()), request.texts, "{body}");
}

/// Sends what has no reply by the model.
fn check_other(address: SocketAddr, request: &KnownRequest, draw: &mut Draw) {
    let mut body = request.body.clone();
    match draw.below(5) {
        0 => {
            body["stream"] = json!(true);
            body["max_tokens"] = json!(400);
            let head = format!("POST {}", request.path);
            let mut stream = Exchange::begin(address, &head, &[], &body.to_string());
            (0..draw.below(20)).for_each(|_| drop(stream.line()));
        }
        1 => {
            body["temperature"] = json!("hot");
            let reply = post(address, request.path, &body);
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("temperature")));
        }
        2 => {
            let tokens = post(address, "/tokenize", &json!({"prompt": "Once upon a time"})).json();
            let text = post(address, "/detokenize", &json!({"tokens": tokens["tokens"]})).json();
            assert_eq!(text["prompt"], "Once upon a time");
        }
        3 => assert_eq!(get(address, "/v1/models").json()["data"][0]["id"], BUILT_IN),
        _ => assert_eq!(get(address, "/nothing").status, 404),
    }
}

/// A client that sends requests until the time is over; counts those that were answered.
fn client(address: SocketAddr, requests: &[KnownRequest], seed: u64, end: Instant, answered: &AtomicU64) {
    let mut draw = Draw(seed);
    while Instant::now() < end {
        let request = &requests[draw.below(requests.len())];
        if draw.once_in(5) {
            check_other(address, request, &mut draw);
        } else {
            check(address, request, draw.once_in(2));
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// The resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What was measured during a soak.
struct SoakReport {
    /// The resident memory after each tenth of the time, in bytes.
    resident: Vec<u64>,
    /// The open descriptors before the first request and after the last one.
    descriptors: (usize, usize),
}

/// Sends mixed requests for this time.
fn soak(time: Duration) -> SoakReport {
    let session = Model::open(BUILT_IN).unwrap().start().unwrap();
    let requests: Vec<_> = (0..VARIANTS).flat_map(|variant| requests_of(&session, variant)).collect();
    drop(session);
    let server = Server::start(options()).unwrap();
    let (address, answered, end) = (server.address(), AtomicU64::new(0), Instant::now() + time);
    let (idle, mut resident) = (descriptors(), Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..AT_ONCE as u64 {
            let (requests, answered) = (&requests, &answered);
            scope.spawn(move || client(address, requests, seed, end, answered));
        }
        for part in 1..=10 {
            sleep(time / 10);
            resident.push(resident_bytes());
            let (answered, mb) = (answered.load(Ordering::Relaxed), resident_bytes() as f64 / 1e6);
            println!("{part} of 10: {answered} requests, {mb:.2} MB resident, {} descriptors", descriptors());
        }
    });
    let begun = Instant::now();
    while server.state().live_generations() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "requests are left");
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(500)); // connections that were left are closed
    let report = SoakReport { resident, descriptors: (idle, descriptors()) };
    server.stop();
    assert!(answered.into_inner() > 20);
    report
}

#[test]
fn mixed_requests_have_the_librarys_bytes() {
    soak(Duration::from_secs(3));
}

#[test]
#[ignore = "ten minutes"]
fn a_long_soak_grows_neither_memory_nor_descriptors() {
    let seconds = std::env::var("GIRIH_SOAK_SECONDS").map_or(600, |seconds| seconds.parse().unwrap());
    let report = soak(Duration::from_secs(seconds));
    let (early, late) = (report.resident[1], report.resident[9]);
    assert!(late <= early + allowed_growth(early), "{early} bytes grew to {late}");
    let (before, after) = report.descriptors;
    assert!(after <= before, "{before} descriptors became {after}");
}
