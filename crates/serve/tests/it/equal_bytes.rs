//! A reply over HTTP has the bytes of the library's reply, whatever runs beside it.
//!
//! 10,000 requests, 16 at a time:
//! `cargo test -p girih-serve --release --test it -- --ignored --nocapture ten_thousand`

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use girih::{BUILT_IN, Drafts, Event, Model, PromptCache, Request, RunOptions, Sampling, Session, Stop};
use girih_serve::{ServeOptions, ServedModel, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Exchange;
use crate::draw::Draw;
use crate::model_server::{options, post};

/// The requests that run or wait at a time.
const AT_ONCE: usize = 16;

/// A greedy request.
struct DrawnRequest {
    prompt: Vec<usize>,
    max_tokens: usize,
    /// Whether its reply is a stream.
    is_stream: bool,
    /// Whether a client that leaves has asked for a long reply to the same prompt.
    has_leaver: bool,
}

impl DrawnRequest {
    /// The request of this number, with ids below `vocabulary`. Many prompts begin alike.
    fn new(number: u64, vocabulary: usize) -> DrawnRequest {
        let mut draw = Draw(number << 20);
        let (mut shared, length) = (Draw(draw.below(20) as u64), draw.below(90));
        let own = 1 + draw.below(30);
        let beginning = (0..length).map(|_| shared.below(vocabulary));
        let prompt = beginning.chain((0..own).map(|_| draw.below(vocabulary))).collect();
        let (max_tokens, is_stream) = (1 + draw.below(16), draw.once_in(2));
        DrawnRequest { prompt, max_tokens, is_stream, has_leaver: draw.once_in(8) }
    }

    fn body(&self) -> Value {
        json!({
            "model": BUILT_IN,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "logprobs": 0,
            "stream": self.is_stream,
        })
    }
}

/// What a client knows of a reply.
#[derive(Debug, Default, PartialEq)]
struct SeenReply {
    text: String,
    logprobs: Vec<Value>,
    reason: Value,
}

/// The library's reply.
fn expected(session: &Session, request: &DrawnRequest) -> SeenReply {
    let prompt: Vec<u32> = request.prompt.iter().map(|id| *id as u32).collect();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let asked = Request::new(prompt).sampling(greedy).max_tokens(request.max_tokens as u32).logprobs(0);
    let mut seen = SeenReply::default();
    for event in session.generate(asked).unwrap() {
        let event = event.unwrap();
        seen.text += event.text();
        match event {
            Event::Token { logprobs: Some(logprobs), .. } => {
                // Printed and parsed as the numbers of a reply are.
                let printed = json!(logprobs.chosen.value).to_string();
                seen.logprobs.push(serde_json::from_str(&printed).unwrap());
            }
            Event::Finished { stop: Stop::Length, .. } => seen.reason = json!("length"),
            Event::Finished { .. } => seen.reason = json!("stop"),
            _ => {}
        }
    }
    seen
}

/// The server's reply.
fn served(address: SocketAddr, request: &DrawnRequest) -> SeenReply {
    let reply = post(address, "/v1/completions", &request.body());
    assert_eq!(reply.status, 200, "{reply:?}");
    let pieces = if request.is_stream { reply.events() } else { vec![reply.json()] };
    let mut seen = SeenReply::default();
    for piece in &pieces {
        let choice = &piece["choices"][0];
        seen.text += choice["text"].as_str().unwrap();
        seen.logprobs.extend(choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().cloned());
        if !choice["finish_reason"].is_null() {
            assert!(seen.reason.is_null(), "a reply ends once: {pieces:?}");
            seen.reason = choice["finish_reason"].clone();
        }
    }
    seen
}

/// Asks for a long stream and leaves when it has begun.
fn leave(address: SocketAddr, request: &DrawnRequest) {
    let mut body = request.body();
    body["stream"] = json!(true);
    body["max_tokens"] = json!(300);
    Exchange::begin(address, "POST /v1/completions", &[], &body.to_string()).line();
}

/// The replies to the requests below `count`, `AT_ONCE` at a time, by number.
fn ask_all(address: SocketAddr, count: u64, vocabulary: usize) -> BTreeMap<u64, SeenReply> {
    let next = AtomicU64::new(0);
    let client = || {
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let replies = numbers.take_while(|number| *number < count).map(|number| {
            let request = DrawnRequest::new(number, vocabulary);
            if request.has_leaver {
                leave(address, &request);
            }
            (number, served(address, &request))
        });
        replies.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// Compares the replies to the requests below `count` with those of a session that runs one at a time.
fn compare(options: ServeOptions, count: u64) {
    let source = options.models[0].source.clone();
    let model = Model::open(&source).unwrap();
    let vocabulary = model.files().facts.sizes.vocabulary;
    let backend = options.models[0].run_options.backend.clone();
    let alone = RunOptions { backend, ..RunOptions::default() };
    let session = model.plan(alone).unwrap().start(|_| {}).unwrap();
    let server = Server::start(options).unwrap();
    let replies = ask_all(server.address(), count, vocabulary);
    assert_eq!(replies.len() as u64, count);
    eprintln!("{count} requests to {source} are answered; they are compared with the library's replies");
    for (number, reply) in &replies {
        assert_eq!(*reply, expected(&session, &DrawnRequest::new(*number, vocabulary)), "request {number}");
    }
    server.stop();
}

/// Eight sequences in chunks of 64 rows.
fn batches() -> ServeOptions {
    let mut options = options();
    options.models[0].run_options.sequences = 8;
    options.models[0].run_options.chunk = 64;
    options
}

/// A folder of this committed model, with the tokenizer of the built-in one, whose vocabulary is as large or larger.
fn with_tokenizer(fixture: &str) -> TempDir {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let model = crates.join("../tests/fixtures").join(fixture);
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = crates.join("girih/assets/stories260k/tokenizer.json");
    for file in [model.join("config.json"), model.join("model.safetensors"), tokenizer] {
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    folder
}

/// Compares the replies of a model that is not built in: with drafts, a prefix cache that holds few of the
/// prompts, replies that are suspended while their client reads, and a server that begins with what an
/// earlier one has saved.
fn compare_model(fixture: &str, drafts: &Drafts, count: u64) {
    let folder = with_tokenizer(fixture);
    let options = || {
        let mut options = batches();
        let ServedModel { source, run_options, .. } = &mut options.models[0];
        *source = folder.path().to_str().unwrap().to_owned();
        run_options.context = Some(448);
        run_options.drafts = drafts.clone();
        run_options.unread_events = 2;
        run_options.prompt_cache = Some(PromptCache { folder: folder.path().join("saved"), limit: 1 << 28 });
        options
    };
    compare(options(), count / 2);
    assert!(
        fs::read_dir(folder.path().join("saved")).unwrap().next().is_some(),
        "the prompt cache is written"
    );
    compare(options(), count);
}

#[test]
fn replies_over_http_have_the_librarys_bytes() {
    compare(batches(), 100);
}

#[test]
fn replies_of_hybrid_and_latent_models_over_http_have_the_librarys_bytes() {
    for fixture in ["lfm2", "qwen3_5", "granitemoehybrid", "deepseek_v3"] {
        compare_model(fixture, &Drafts::PromptLookup, 30);
    }
    compare_model("qwen3_5_mtp", &Drafts::Mtp, 30);
}

#[test]
#[ignore = "minutes in a release build"]
fn ten_thousand_replies_over_http_have_the_librarys_bytes() {
    compare(batches(), 10_000);
    compare_model("lfm2", &Drafts::PromptLookup, 1_000);
    for fixture in ["qwen3_5", "granitemoehybrid", "deepseek_v3"] {
        compare_model(fixture, &Drafts::PromptLookup, 10_000);
    }
}

#[test]
#[ignore = "minutes in a release build"]
fn ten_thousand_replies_with_a_layers_drafts_have_the_librarys_bytes() {
    compare_model("qwen3_5_mtp", &Drafts::Mtp, 10_000);
}

/// On Mesa's software GPU: 600 requests to the whole model, 300 to its last two layers, and 100 to a mixture whose experts stay on the CPU.
///
/// `cargo test --locked -p girih-serve --features girih/gpu --test it thousand_replies_of_a_gpu -- --ignored`
#[test]
#[ignore = "minutes, and needs the feature girih/gpu and Mesa's software Vulkan"]
fn a_thousand_replies_of_a_gpu_have_the_librarys_bytes() {
    let gpu = || girih::backend("gpu:llvmpipe").unwrap();
    for (backend, count) in [(gpu(), 600), (gpu().with("gpu-layers", "2").unwrap(), 300)] {
        let mut options = batches();
        options.models[0].run_options.backend = backend;
        compare(options, count);
    }
    let folder = with_tokenizer("granitemoehybrid");
    let mut options = batches();
    let ServedModel { source, run_options, .. } = &mut options.models[0];
    *source = folder.path().to_str().unwrap().to_owned();
    run_options.context = Some(448);
    run_options.backend = gpu().with("cpu-experts", "on").unwrap();
    compare(options, 100);
}
