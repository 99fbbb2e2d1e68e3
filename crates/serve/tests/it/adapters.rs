//! Adapters, which requests name like models.

use std::net::SocketAddr;
use std::path::Path;

use girih::AdapterSource;
use girih_serve::Server;
use serde_json::json;

use crate::model_server::{get, options, post, refusal};

fn adapter(name: &str) -> AdapterSource {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/stories_adapter");
    AdapterSource { name: name.to_owned(), path }
}

#[test]
fn requests_name_adapters_like_models() {
    let mut options = options();
    options.models[0].open_options.adapters = vec![adapter("poet"), adapter("bard")];
    let server = Server::start(options).unwrap();
    let address = server.address();
    let list = get(address, "/v1/models").json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["stories260k", "poet", "bard"]);
    let tags = get(address, "/api/tags").json();
    let digests: Vec<&str> =
        tags["models"].as_array().unwrap().iter().map(|model| model["digest"].as_str().unwrap()).collect();
    assert!(digests[0] != digests[1] && digests[1] != digests[2], "{digests:?}");

    let prompt = "Once upon a time, there was a little girl";
    let text = |model: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0});
        let reply = post(address, "/v1/completions", &body).json();
        assert_eq!(reply["model"], model);
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (reply["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    };
    let (plain, _) = text("stories260k");
    let (poet, of_cache) = text("poet");
    assert_ne!(plain, poet);
    // The prompt of the model alone is no prompt of the adapter.
    assert_eq!(of_cache, 0);
    let (again, of_cache) = text("poet");
    assert!(again == poet && of_cache > 0, "{of_cache}");
    assert_eq!(text("bard"), (poet.clone(), 0));

    let ollama = json!({"model": "poet", "prompt": prompt, "raw": true, "stream": false,
        "options": {"num_predict": 16, "temperature": 0}});
    assert_eq!(post(address, "/api/generate", &ollama).json()["response"], poet.as_str());
    let message =
        json!({"model": "poet", "max_tokens": 8, "messages": [{"role": "user", "content": prompt}]});
    assert_eq!(post(address, "/v1/messages", &message).json()["model"], "poet");

    let unknown = post(address, "/v1/completions", &json!({"model": "singer", "prompt": "a"}));
    assert_eq!(refusal(&unknown), (404, "model_not_found".to_owned(), "model".to_owned()));
    assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("stories260k, poet, bard"));
}

#[test]
fn names_of_adapters_and_models_differ() {
    let mut options = options();
    options.models[0].open_options.adapters = vec![adapter("stories260k")];
    let error = Server::start(options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("two models or adapters have the name stories260k"), "{error}");
}

/// A server of the built-in model whose clients may load the committed adapters.
fn changeable() -> girih_serve::ServeOptions {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    girih_serve::ServeOptions { adapter_folder: Some(folder), ..options() }
}

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn ids(address: SocketAddr) -> Vec<String> {
    let list = get(address, "/v1/models").json();
    let models = list["data"].as_array().unwrap().iter();
    models.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// A reply of this many tokens, and the number of prompt tokens that were in the cache.
fn reply(address: SocketAddr, model: &str, tokens: u32) -> (String, u64) {
    let prompt = "Once upon a time, there was a little girl";
    let body =
        json!({"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
    let reply = post(address, "/v1/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (reply.json()["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

#[test]
fn adapters_come_and_go_while_the_server_runs() {
    let mut fixed = options();
    fixed.models[0].open_options.adapters = vec![adapter("poet")];
    let fixed = Server::start(fixed).unwrap();
    let (plain, poet) = (reply(fixed.address(), "stories260k", 200).0, reply(fixed.address(), "poet", 200).0);
    assert_ne!(plain, poet);

    let server = Server::start(changeable()).unwrap();
    let address = server.address();
    let load = |name: &str| post(address, LOAD, &json!({"lora_name": name, "lora_path": "stories_adapter"}));
    // Replies that run end first, with the bytes that they have alone, and those that come meanwhile wait.
    let running: Vec<_> =
        (0..3).map(|_| std::thread::spawn(move || reply(address, "stories260k", 200).0)).collect();
    let loaded = load("poet");
    assert_eq!(
        (loaded.status, loaded.body.as_str()),
        (200, "Success: LoRA adapter 'poet' added successfully.")
    );
    assert!(running.into_iter().all(|reply| reply.join().unwrap() == plain));
    assert_eq!(ids(address), ["stories260k", "poet"]);
    let tags = get(address, "/api/tags").json();
    assert_eq!(tags["models"][1]["name"], "poet");
    assert_eq!(reply(address, "poet", 200), (poet.clone(), 0));
    assert_eq!(reply(address, "stories260k", 200), (plain.clone(), 0));
    assert_eq!(load("bard").status, 200);
    assert_eq!(ids(address), ["stories260k", "poet", "bard"]);
    assert_eq!(reply(address, "bard", 200).0, poet);

    let unload = |name: &str| post(address, UNLOAD, &json!({"lora_name": name}));
    assert_eq!(unload("poet").body, "Success: LoRA adapter 'poet' removed successfully.");
    assert_eq!(ids(address), ["stories260k", "bard"]);
    assert_eq!(reply(address, "bard", 200).0, poet);
    let gone = post(address, "/v1/completions", &json!({"model": "poet", "prompt": "a"}));
    assert_eq!(refusal(&gone), (404, "model_not_found".to_owned(), "model".to_owned()));
    assert_eq!(refusal(&unload("poet")), (404, "model_not_found".to_owned(), "lora_name".to_owned()));
    assert_eq!(unload("bard").status, 200);
    assert_eq!(reply(address, "stories260k", 200).0, plain);
    server.stop();
}

#[test]
fn what_is_no_adapter_of_the_folder_is_refused_and_the_model_stays() {
    let mut options = changeable();
    options.models[0].open_options.adapters = vec![adapter("poet")];
    let server = Server::start(options).unwrap();
    let address = server.address();
    let load = |name: &str, path: &str| {
        refusal(&post(address, LOAD, &json!({"lora_name": name, "lora_path": path})))
    };
    let wrong = |param: &str| (400, "invalid_value".to_owned(), param.to_owned());
    for path in ["..", "../bad", "nothing", "/etc/passwd", "", "llama32_tied"] {
        assert_eq!(load("bard", path), wrong("lora_path"), "{path:?}");
    }
    for name in ["poet", "stories260k", "", "a b", "a:latest"] {
        assert_eq!(load(name, "stories_adapter"), wrong("lora_name"), "{name:?}");
    }
    let body = json!({"lora_name": "bard", "lora_path": "stories_adapter", "base_model_name": "poet"});
    assert_eq!(refusal(&post(address, LOAD, &body)), wrong("base_model_name"));
    let unknown = json!({"lora_name": "bard", "lora_path": "stories_adapter", "base_model_name": "other"});
    assert_eq!(post(address, LOAD, &unknown).status, 404);
    // One of the command line, which lies elsewhere by its name.
    assert_eq!(refusal(&post(address, UNLOAD, &json!({"lora_name": "poet"}))), wrong("lora_name"));
    assert_eq!(ids(address), ["stories260k", "poet"]);
    reply(address, "poet", 8);
}

#[test]
fn an_adapter_for_which_there_is_no_memory_is_refused() {
    let mut options = changeable();
    let model = girih::Model::open("stories260k").unwrap();
    options.memory = model.plan(options.models[0].run_options.clone()).unwrap().memory().total();
    let server = Server::start(options).unwrap();
    let body = json!({"lora_name": "poet", "lora_path": "stories_adapter"});
    let refused = post(server.address(), LOAD, &body);
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (503, Some("out_of_memory")),
        "{refused:?}"
    );
    assert_eq!(ids(server.address()), ["stories260k"]);
    reply(server.address(), "stories260k", 8);
}

#[test]
fn clients_change_adapters_only_where_the_operator_allows_it() {
    let address = crate::model_server::shared();
    for (path, body) in
        [(LOAD, json!({"lora_name": "a", "lora_path": "b"})), (UNLOAD, json!({"lora_name": "a"}))]
    {
        let refused = post(address, path, &body);
        assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (501, Some("not_supported")));
        assert!(refused.body.contains("--allow-adapters"), "{refused:?}");
    }
}
