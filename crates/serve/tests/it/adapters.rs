//! Adapters, which requests name like models.

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
