//! The text between two others: `suffix` of completions, and `/infill`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use girih_serve::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::model_server::{options, post, refusal, shared};

/// The tokens of StarCoder's vocabulary around a gap: 4, 5 and 6 in [`folder`].
const GAP: [&str; 3] = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"];

/// A copy of the built-in model with special tokens, from 4 on, in place of bytes.
fn folder(tokens: &[&str]) -> TempDir {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../girih/assets/stories260k");
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "config.json", "generation_config.json", "tokenizer_config.json"] {
        fs::copy(assets.join(file), folder.path().join(file)).unwrap();
    }
    let text = fs::read_to_string(assets.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    for (byte, spelling) in tokens.iter().copied().enumerate() {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove(&format!("<0x{:02X}>", byte + 1)).unwrap();
        vocab.insert(spelling.to_owned(), id.clone());
        let added = json!({"id": id, "content": spelling, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    }
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn started(folder: &TempDir) -> Server {
    let mut options = options();
    options.models[0].source = folder.path().to_str().unwrap().to_owned();
    Server::start(options).unwrap()
}

fn tokens(address: SocketAddr, text: &str) -> Vec<u64> {
    let reply = post(address, "/tokenize", &json!({"prompt": text, "add_special_tokens": false})).json();
    reply["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_reply_stands_between_a_prompt_and_its_suffix() {
    let folder = folder(&GAP);
    let server = started(&folder);
    let address = server.address();
    let of = |body: Value| {
        let reply = post(address, "/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["choices"][0]["text"].clone()
    };
    let mut expected = vec![1, 4];
    expected.extend(tokens(address, "Lily saw a <fim_middle>"));
    expected.push(5);
    expected.extend(tokens(address, "and ran."));
    expected.push(6);
    let by_tokens = of(json!({"prompt": expected, "max_tokens": 12}));
    let by_suffix = of(json!({"prompt": "Lily saw a <fim_middle>", "suffix": "and ran.", "max_tokens": 12}));
    assert_eq!(by_suffix, by_tokens);
    let ollama = json!({"model": "stories260k", "prompt": "Lily saw a <fim_middle>", "suffix": "and ran.",
        "stream": false, "options": {"num_predict": 12}});
    assert_eq!(post(address, "/api/generate", &ollama).json()["response"], by_tokens);
    // A token of the middle ends the reply.
    let forced = json!({"prompt": "Lily", "suffix": "ran", "max_tokens": 12, "logit_bias": {"4": 100}});
    let reply = post(address, "/v1/completions", &forced).json();
    assert_eq!(
        (&reply["choices"][0]["finish_reason"], &reply["choices"][0]["text"]),
        (&json!("stop"), &json!(""))
    );
    let both = post(address, "/v1/completions", &json!({"prompt": [1], "suffix": "a"}));
    assert_eq!(refusal(&both), (400, "invalid_value".to_owned(), "suffix".to_owned()));
    server.stop();
}

#[test]
fn a_model_without_such_tokens_refuses_a_suffix_by_name() {
    let reply = post(shared(), "/v1/completions", &json!({"prompt": "a", "suffix": "b"}));
    let (status, _, param) = refusal(&reply);
    assert_eq!((status, param.as_str()), (400, "suffix"));
    assert!(reply.body.contains("vocabulary"), "{}", reply.body);
}

#[test]
fn infill_has_the_prompt_and_the_reply_of_llama_server() {
    let tokens_of_files = ["<repo_name>", "<file_sep>"];
    let names: Vec<&str> = GAP.into_iter().chain(tokens_of_files).collect();
    let folder = folder(&names);
    let server = started(&folder);
    let address = server.address();
    // The tokens of the repository and of files are 7 and 8.
    let mut expected = vec![1, 7];
    expected.extend(tokens(address, "myproject\n"));
    expected.push(8);
    expected.extend(tokens(address, "a.rs\nTom <fim_middle>"));
    expected.push(8);
    expected.extend(tokens(address, "filename\n"));
    expected.push(4);
    expected.extend(tokens(address, "Lily saw a "));
    expected.push(5);
    expected.extend(tokens(address, " and ran."));
    expected.push(6);
    let by_tokens = post(address, "/v1/completions", &json!({"prompt": expected, "max_tokens": 12})).json();
    let text = by_tokens["choices"][0]["text"].as_str().unwrap();
    // As llama.vim sends it.
    let body = json!({"input_prefix": "Lily saw", "prompt": " a ", "input_suffix": " and ran.",
        "input_extra": [{"filename": "a.rs", "text": "Tom <fim_middle>"}], "n_predict": 12, "n_indent": 4,
        "top_k": 40, "temperature": 0, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "stream": false});
    let reply = post(address, "/infill", &body);
    let whole = reply.json();
    assert_eq!((reply.status, whole["content"].as_str()), (200, Some(text)), "{}", reply.body);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["truncated"]),
        (&json!(true), &json!("limit"), &json!(false))
    );
    assert_eq!(whole["tokens_evaluated"], json!(expected.len()));
    assert_eq!(whole["tokens_cached"], json!(expected.len() - 1));
    assert_eq!(
        reply.header("x-girih-without-effect"),
        Some("n_indent, samplers, cache_prompt, t_max_prompt_ms, t_max_predict_ms")
    );
    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        post(address, "/infill", &body)
    };
    let cut = with("response_fields", json!(["content", "timings/predicted_n", "nothing"])).json();
    assert_eq!(cut, json!({"content": text, "timings/predicted_n": 11}));
    let mut both = body.clone();
    both["stream"] = json!(true);
    both["response_fields"] = json!(["content"]);
    let refused = refusal(&post(address, "/infill", &both));
    assert_eq!(refused, (400, "unsupported_parameter".to_owned(), "response_fields".to_owned()));
    let warm = with("n_predict", json!(0)).json();
    assert_eq!((&warm["content"], &warm["tokens_predicted"]), (&json!(""), &json!(0)));
    let stream = with("stream", json!(true)).body;
    let pieces = stream.split("\n\n").filter_map(|line| line.strip_prefix("data: "));
    let pieces: Vec<Value> = pieces.map(|piece| serde_json::from_str(piece).unwrap()).collect();
    let streamed: String = pieces.iter().map(|piece| piece["content"].as_str().unwrap()).collect();
    let stops: Vec<&Value> = pieces.iter().map(|piece| &piece["stop"]).collect();
    assert_eq!(streamed, text);
    assert!(stops.len() > 2 && stops.iter().rev().skip(1).all(|stop| **stop == json!(false)), "{stream}");
    assert_eq!(stops.last(), Some(&&json!(true)));
    let stopped = with("stop", json!([&text[1..4]])).json();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(text[1..4])));
    for (name, value) in [("n", json!(2)), ("input_extra", json!(1)), ("input_prefix", json!(1))] {
        let (status, _, param) = refusal(&with(name, value));
        assert_eq!((status, param.as_str()), (400, name));
    }
    server.stop();
}

#[test]
fn files_beside_a_gap_are_snippets_without_tokens_for_them() {
    let folder = folder(&GAP);
    let server = started(&folder);
    let address = server.address();
    let mut expected = vec![1];
    expected.extend(tokens(address, "\n\n--- snippet ---\n\nTom"));
    expected.push(4);
    expected.extend(tokens(address, "Lily"));
    expected.push(5);
    expected.extend(tokens(address, "ran"));
    expected.push(6);
    let by_tokens = post(address, "/v1/completions", &json!({"prompt": expected, "max_tokens": 12})).json();
    let body = json!({"input_prefix": "Lily", "input_suffix": "ran", "input_extra": [{"text": "Tom"}], "n_predict": 12});
    let reply = post(address, "/infill", &body).json();
    assert_eq!(reply["content"], by_tokens["choices"][0]["text"]);
    assert_eq!(reply["tokens_evaluated"], json!(expected.len()));
    server.stop();
}

#[test]
fn a_model_without_such_tokens_refuses_infill_by_name() {
    let reply = post(shared(), "/infill", &json!({"input_prefix": "a", "input_suffix": "b"}));
    let (status, _, param) = refusal(&reply);
    assert_eq!((status, param.as_str()), (400, "model"));
    assert!(reply.body.contains("<|fim_prefix|>"), "{}", reply.body);
    let missing = post(shared(), "/infill", &json!({"input_prefix": "a"}));
    assert_eq!(refusal(&missing), (400, "missing_parameter".to_owned(), "input_suffix".to_owned()));
}
