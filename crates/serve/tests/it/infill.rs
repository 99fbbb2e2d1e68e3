//! `suffix`: the text between two others.

use std::fs;
use std::path::{Path, PathBuf};

use girih_serve::Server;
use serde_json::{Value, json};

use crate::model_server::{options, post, refusal, shared};

/// A copy of the built-in model three of whose tokens are those of StarCoder's vocabulary.
fn folder() -> PathBuf {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../girih/assets/stories260k");
    let folder = std::env::temp_dir().join(format!("girih-infill-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for file in ["model.safetensors", "config.json", "generation_config.json", "tokenizer_config.json"] {
        fs::copy(assets.join(file), folder.join(file)).unwrap();
    }
    let text = fs::read_to_string(assets.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    for (byte, spelling) in ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"].into_iter().enumerate() {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove(&format!("<0x{:02X}>", byte + 1)).unwrap();
        vocab.insert(spelling.to_owned(), id.clone());
        let added = json!({"id": id, "content": spelling, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

#[test]
fn a_reply_stands_between_a_prompt_and_its_suffix() {
    let folder = folder();
    let mut options = options();
    options.models[0].source = folder.to_str().unwrap().to_owned();
    let server = Server::start(options).unwrap();
    let address = server.address();
    let of = |body: Value| {
        let reply = post(address, "/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["choices"][0]["text"].clone()
    };
    let tokens = |text: &str| {
        let reply = post(address, "/tokenize", &json!({"prompt": text, "add_special_tokens": false}));
        reply.json()["tokens"].as_array().unwrap().clone()
    };
    let mut expected = vec![json!(1), json!(4)];
    expected.extend(tokens("Lily saw a <fim_middle>"));
    expected.push(json!(5));
    expected.extend(tokens("and ran."));
    expected.push(json!(6));
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
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_model_without_such_tokens_refuses_a_suffix_by_name() {
    let reply = post(shared(), "/v1/completions", &json!({"prompt": "a", "suffix": "b"}));
    let (status, _, param) = refusal(&reply);
    assert_eq!((status, param.as_str()), (400, "suffix"));
    assert!(reply.body.contains("vocabulary"), "{}", reply.body);
}
