//! Embeddings in the forms of OpenAI and Ollama.

use std::fs;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use girih::{ErrorKind, Model, OpenOptions, RunOptions};
use girih_serve::encoders::ServedEncoder;
use girih_serve::{ServedModel, Server};
use serde_json::{Value, json};

use crate::client::Exchange;
use crate::model_server::{get, options, post, refusal, shared};

const PATH: &str = "/v1/embeddings";

/// The time for which a request waits for a slow encoder.
const MAX_WAIT: Duration = Duration::from_millis(5);

/// A folder with an encoder of random weights and the built-in model's tokenizer.
fn encoder() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-bert");
        fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(root.join("tests/fixtures/bert").join(file), folder.join(file)).unwrap();
        }
        let tokenizer = root.join("crates/girih/assets/stories260k/tokenizer.json");
        fs::copy(tokenizer, folder.join("tokenizer.json")).unwrap();
        folder.to_str().unwrap().to_owned()
    })
}

/// A server with the built-in model and an encoder.
fn with_encoder() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let start = || {
        let mut options = options();
        options.models.push(ServedModel {
            name: "tiny-bert".to_owned(),
            source: encoder().to_owned(),
            open_options: OpenOptions::default(),
            run_options: RunOptions::default(),
            is_loaded_on_request: false,
            unload_idle: None,
            version: None,
        });
        Server::start(options).unwrap()
    };
    SERVER.get_or_init(start).address()
}

fn model() -> Model {
    Model::open(encoder()).unwrap()
}

/// The library's vectors.
fn expected(texts: &[&str]) -> Vec<Vec<f32>> {
    let mut embedder = model().plan(RunOptions::default()).unwrap().load_embedder(|_| {}).unwrap();
    embedder.embed(texts).unwrap()
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[test]
fn vectors_are_the_librarys_in_all_forms() {
    let address = with_encoder();
    let expected = expected(&["a cat", "a dog on a hill"]);
    let texts = json!({"model": "tiny-bert", "input": ["a cat", "a dog on a hill"], "user": "me"});
    let reply = post(address, PATH, &texts).json();
    assert_eq!(reply["object"], "list");
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(reply["data"][index]["index"], index);
        assert_eq!(vector(&reply["data"][index]["embedding"]), *expected);
    }
    let cat = model().tokenize("a cat").unwrap();
    let tokens = cat.len() + model().tokenize("a dog on a hill").unwrap().len();
    assert_eq!(reply["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    let of = |input: Value, format: &str| {
        let body = json!({"model": "tiny-bert", "input": input, "encoding_format": format});
        post(address, PATH, &body).json()["data"][0]["embedding"].clone()
    };
    assert_eq!(vector(&of(json!("a cat"), "float")), expected[0]);
    assert_eq!(vector(&of(json!(cat), "float")), expected[0]);
    assert_eq!(vector(&of(json!([cat]), "float")), expected[0]);
    let text = of(json!("a cat"), "base64");
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, expected[0]);
    let embed = json!({"model": "tiny-bert:latest", "input": "a cat", "keep_alive": "5m", "dimensions": 48});
    let reply = post(address, "/api/embed", &embed).json();
    assert_eq!(vector(&reply["embeddings"][0]), expected[0]);
    assert_eq!(reply["prompt_eval_count"], cat.len());
    let one = post(address, "/api/embeddings", &json!({"model": "tiny-bert", "prompt": "a cat"})).json();
    assert_eq!(vector(&one["embedding"]), expected[0]);
}

#[test]
fn encoders_and_other_models_are_told_apart() {
    let text = json!({"model": "stories260k", "input": "a cat"});
    let parts = |(status, code, param): (u16, String, String)| format!("{status} {code} {param}");
    assert_eq!(parts(refusal(&post(shared(), PATH, &text))), "400 unsupported_parameter model");
    let address = with_encoder();
    let of = |body: Value| parts(refusal(&post(address, PATH, &body)));
    assert_eq!(
        of(json!({"model": "tiny-bert", "input": "a", "dimensions": 16})),
        "400 unsupported_parameter dimensions"
    );
    assert_eq!(of(json!({"model": "tiny-bert", "input": []})), "400 invalid_value input");
    assert_eq!(of(json!({"model": "tiny-bert", "input": vec!["a"; 65]})), "400 invalid_value input");
    assert_eq!(of(json!({"model": "tiny-bert", "input": [[]]})), "400 invalid_value ");
    assert_eq!(of(json!({"model": "tiny-bert", "input": [99_999_999]})), "400 invalid_value ");
    let long = "word ".repeat(600);
    assert_eq!(of(json!({"model": "tiny-bert", "input": long})), "400 context_length_exceeded ");
    let cut = json!({"model": "tiny-bert", "input": long});
    let reply = post(address, "/api/embed", &cut);
    assert_eq!(reply.json()["prompt_eval_count"], 128, "{reply:?}");
    let refused = json!({"model": "tiny-bert", "input": long, "truncate": false});
    assert_eq!(post(address, "/api/embed", &refused).status, 400);
    let chat = json!({"model": "tiny-bert", "messages": [{"role": "user", "content": "a"}]});
    let reply = post(address, "/v1/chat/completions", &chat);
    assert!(
        reply.status == 400 && reply.body.contains("is an encoder, which generates no text"),
        "{reply:?}"
    );
    // It is not unloaded either.
    for path in ["/api/generate", "/api/chat"] {
        let reply = post(address, path, &json!({"model": "tiny-bert", "keep_alive": 0}));
        assert!(reply.status == 400 && reply.body.contains("is an encoder"), "{reply:?}");
    }
    let loaded = get(address, "/api/ps").json();
    assert_eq!(loaded["models"].as_array().unwrap().len(), 2);
    let shown = post(address, "/api/show", &json!({"model": "tiny-bert"})).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn embeddings_that_nobody_waits_for_are_not_computed() {
    let encoder = ServedEncoder::new(model(), RunOptions::default()).unwrap();
    let texts = vec![model().tokenize("Once upon a time").unwrap(); 2];
    let embed = |is_wanted: bool| encoder.embed(texts.clone(), |_, _| {}, move || is_wanted);
    assert_eq!(embed(true).unwrap().vectors.len(), 2);
    assert_eq!(embed(false).unwrap_err().kind(), ErrorKind::Cancelled);
}

/// A backend pins the thread that loads weights, so the thread of a request must not be that one.
#[test]
fn an_encoder_is_loaded_and_run_in_one_thread_of_its_own() {
    let encoder = ServedEncoder::new(model(), RunOptions::default()).unwrap();
    encoder.load().unwrap();
    let texts = vec![model().tokenize("Once upon a time").unwrap()];
    let used = || {
        let (tell, told) = mpsc::channel();
        let cut = move |_: &mut [Vec<u32>], _| tell.send(thread::current().id()).unwrap();
        encoder.embed(texts.clone(), cut, || true).unwrap();
        told.recv().unwrap()
    };
    let first = used();
    let second = thread::scope(|scope| scope.spawn(used).join().unwrap());
    assert_eq!(first, second);
    assert_ne!(first, thread::current().id());
}

/// The next request finds the encoder as it was.
#[test]
fn a_panic_in_one_request_ends_only_that_one() {
    let encoder = ServedEncoder::new(model(), RunOptions::default()).unwrap();
    let texts = vec![model().tokenize("Once upon a time").unwrap()];
    let panics = || encoder.embed(texts.clone(), |_, _| panic!("a fault of a request"), || true);
    assert!(panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(encoder.embed(texts, |_, _| {}, || true).unwrap().vectors.len(), 1);
}

#[test]
fn a_request_waits_for_its_turn_only_for_a_while() {
    let mut options = options();
    // The reference takes some 0.4 s for all texts.
    let backend = girih::BackendChoice::parse(girih::backends(), "interpreter").unwrap();
    options.models = vec![ServedModel {
        name: "tiny-bert".to_owned(),
        source: encoder().to_owned(),
        open_options: OpenOptions::default(),
        run_options: RunOptions { backend, max_wait: Some(MAX_WAIT), ..RunOptions::default() },
        is_loaded_on_request: false,
        unload_idle: None,
        version: None,
    }];
    let server = Server::start(options).unwrap();
    let short = json!({"model": "tiny-bert", "input": "Once"});
    let long =
        json!({"model": "tiny-bert", "input": vec!["Once upon a time there was a girl. ".repeat(5); 64]});
    let leaving = Exchange::begin(server.address(), &format!("POST {PATH}"), &[], &long.to_string());
    while server.state().live_generations() == 0 {
        thread::yield_now();
    }
    let late = post(server.address(), PATH, &short);
    assert_eq!(refusal(&late), (429, "queue_timeout".to_owned(), String::new()));
    assert_eq!(late.header("retry-after"), Some("1"));
    drop(leaving);
    let begun = Instant::now();
    while server.state().live_generations() > 0 {
        thread::sleep(Duration::from_millis(2));
        assert!(begun.elapsed() < Duration::from_secs(20), "the embeddings do not end");
    }
    assert_eq!(post(server.address(), PATH, &short).status, 200);
    server.stop();
}
