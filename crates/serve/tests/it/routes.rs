//! Routes that need no generation, and requests that no route takes.

use crate::client::Exchange;
use crate::model_server::{get, post, refusal, shared};
use serde_json::json;

#[test]
fn health_readiness_and_models_are_told() {
    let address = shared();
    assert_eq!(get(address, "/health").json(), json!({"status": "ok"}));
    assert_eq!(get(address, "/ready").json(), json!({"status": "ready"}));
    let models = get(address, "/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "stories260k");
    assert_eq!(models["data"][0]["max_model_len"], 512);
    assert_eq!(models["data"][0]["context_length"], 512);
    assert_eq!(get(address, "/v1/models/stories260k").json()["object"], "model");
    assert_eq!(
        refusal(&get(address, "/v1/models/org/other")),
        (404, "model_not_found".to_owned(), "model".to_owned())
    );
}

#[test]
fn a_wrong_path_or_method_is_refused_in_the_form_of_its_api() {
    let address = shared();
    assert_eq!(refusal(&get(address, "/v1/nothing")).0, 404);
    let wrong_method = get(address, "/v1/chat/completions");
    assert_eq!(refusal(&wrong_method).0, 405);
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    assert!(get(address, "/api/nothing").json()["error"].is_string());
}

#[test]
fn a_request_keeps_its_id() {
    let address = shared();
    let with_id = |id: &str| Exchange::begin(address, "GET /health", &[("x-request-id", id)], "").finish();
    assert_eq!(with_id("abc-1").header("x-request-id"), Some("abc-1"));
    let made = get(address, "/health");
    assert_eq!(made.header("x-request-id").unwrap().len(), 32);
    assert_eq!(with_id(&"x".repeat(200)).header("x-request-id").unwrap().len(), 32);
    let refused = post(address, "/v1/nothing", &json!({}));
    assert!(refused.header("x-request-id").is_some());
}

#[test]
fn the_description_names_every_route_and_no_reference_is_open() {
    let document = get(shared(), "/openapi.json").json();
    let paths: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        ["/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health", "/ready"];
    let of_other_apis =
        ["/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens", "/api/chat"];
    for path in expected.into_iter().chain(of_other_apis).chain(["/metrics"]) {
        assert!(paths.contains(&path), "{path} is not in {paths:?}");
    }
    let chat = &document["components"]["schemas"]["ChatRequest"];
    assert_eq!(chat["additionalProperties"], json!(false));
    assert_eq!(chat["properties"]["n"]["maximum"], json!(8));
    assert!(chat["required"].as_array().unwrap().contains(&json!("messages")));
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}
