//! Embeddings in the forms of OpenAI and Ollama.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use base64::Engine as _;
use girih::{OpenOptions, RunOptions};
use girih_serve::{ServedModel, Server};
use serde_json::{Value, json};

use crate::started::{get, options, post, refusal, shared};

const PATH: &str = "/v1/embeddings";

fn encoder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("GIRIH_TEST_DATA")?).join("models/all-MiniLM-L6-v2");
    folder.is_dir().then_some(folder)
}

/// A server with the built-in model and an encoder; `None` without the encoder's files.
fn with_encoder() -> Option<SocketAddr> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let start = || {
        let Some(folder) = encoder() else {
            eprintln!("skipped: GIRIH_TEST_DATA has no models/all-MiniLM-L6-v2");
            return None;
        };
        let mut options = options();
        options.models.push(ServedModel {
            name: "minilm".to_owned(),
            source: folder.to_string_lossy().into_owned(),
            open_options: OpenOptions::default(),
            run_options: RunOptions::default(),
        });
        Some(Server::start(options).unwrap())
    };
    SERVER.get_or_init(start).as_ref().map(Server::address)
}

/// The library's vectors.
fn expected(texts: &[&str]) -> Vec<Vec<f32>> {
    let folder = encoder().unwrap();
    let model = girih::Model::open(folder.to_str().unwrap()).unwrap();
    let mut embedder = model.plan(RunOptions::default()).unwrap().load_embedder(|_| {}).unwrap();
    embedder.embed(texts).unwrap()
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[test]
fn vectors_are_the_librarys_in_all_forms() {
    let Some(address) = with_encoder() else { return };
    let expected = expected(&["a cat", "a dog on a hill"]);
    let texts = json!({"model": "minilm", "input": ["a cat", "a dog on a hill"], "user": "me"});
    let reply = post(address, PATH, &texts).json();
    assert_eq!(reply["object"], "list");
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(reply["data"][index]["index"], index);
        assert_eq!(vector(&reply["data"][index]["embedding"]), *expected);
    }
    // [CLS] a cat [SEP] and [CLS] a dog on a hill [SEP]
    assert_eq!(reply["usage"], json!({"prompt_tokens": 11, "total_tokens": 11}));
    let of = |input: Value, format: &str| {
        let body = json!({"model": "minilm", "input": input, "encoding_format": format});
        post(address, PATH, &body).json()["data"][0]["embedding"].clone()
    };
    assert_eq!(vector(&of(json!("a cat"), "float")), expected[0]);
    assert_eq!(vector(&of(json!([101, 1037, 4937, 102]), "float")), expected[0]);
    assert_eq!(vector(&of(json!([[101, 1037, 4937, 102]]), "float")), expected[0]);
    let text = of(json!("a cat"), "base64");
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, expected[0]);
    let embed = json!({"model": "minilm:latest", "input": "a cat", "keep_alive": "5m", "dimensions": 384});
    let reply = post(address, "/api/embed", &embed).json();
    assert_eq!(vector(&reply["embeddings"][0]), expected[0]);
    assert_eq!(reply["prompt_eval_count"], 4);
    let one = post(address, "/api/embeddings", &json!({"model": "minilm", "prompt": "a cat"})).json();
    assert_eq!(vector(&one["embedding"]), expected[0]);
}

#[test]
fn encoders_and_other_models_are_told_apart() {
    let text = json!({"model": "stories260k", "input": "a cat"});
    let parts = |(status, code, param): (u16, String, String)| format!("{status} {code} {param}");
    assert_eq!(parts(refusal(&post(shared(), PATH, &text))), "400 unsupported_parameter model");
    let Some(address) = with_encoder() else { return };
    let of = |body: Value| parts(refusal(&post(address, PATH, &body)));
    assert_eq!(
        of(json!({"model": "minilm", "input": "a", "dimensions": 64})),
        "400 unsupported_parameter dimensions"
    );
    assert_eq!(of(json!({"model": "minilm", "input": []})), "400 invalid_value input");
    assert_eq!(of(json!({"model": "minilm", "input": vec!["a"; 65]})), "400 invalid_value input");
    assert_eq!(of(json!({"model": "minilm", "input": [[]]})), "400 invalid_value ");
    assert_eq!(of(json!({"model": "minilm", "input": [99_999_999]})), "400 invalid_value ");
    let long = "word ".repeat(600);
    assert_eq!(of(json!({"model": "minilm", "input": long})), "400 context_length_exceeded ");
    let cut = json!({"model": "minilm", "input": long});
    let reply = post(address, "/api/embed", &cut);
    assert_eq!(reply.status, 200, "{reply:?}");
    let refused = json!({"model": "minilm", "input": long, "truncate": false});
    assert_eq!(post(address, "/api/embed", &refused).status, 400);
    let chat = json!({"model": "minilm", "messages": [{"role": "user", "content": "a"}]});
    let reply = post(address, "/v1/chat/completions", &chat);
    assert!(
        reply.status == 400 && reply.body.contains("is an encoder, which generates no text"),
        "{reply:?}"
    );
    let loaded = get(address, "/api/ps").json();
    assert_eq!(loaded["models"].as_array().unwrap().len(), 2);
    let shown = post(address, "/api/show", &json!({"model": "minilm"})).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}
