//! Lists in place of objects, which serde would read as the fields' values in order.

use serde_json::{Value, json};

use crate::model_server::{post, shared};

/// The status of a request.
fn status(path: &str, body: &Value) -> u16 {
    post(shared(), path, body).status
}

#[test]
fn a_list_is_no_object_in_any_dialect() {
    let user = json!({"role": "user", "content": "Once"});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let chat = json!({"messages": [user], "max_tokens": 1});
    let anthropic = json!({"model": "stories260k", "messages": [user], "max_tokens": 1});
    let responses = json!({"input": "Once", "max_output_tokens": 1});
    let ollama = json!({"model": "stories260k", "messages": [user], "options": {"num_predict": 1}});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/messages", &anthropic),
        ("/v1/responses", &responses),
        ("/api/chat", &ollama),
    ] {
        assert_eq!(status(path, body), 200, "{path}");
    }
    let nothing = Value::Null;
    for (path, body, name, list) in [
        ("/v1/chat/completions", &chat, "stream_options", json!([true])),
        ("/v1/chat/completions", &chat, "stream_options", json!([true, false])),
        ("/v1/chat/completions", &chat, "response_format", json!(["text"])),
        (
            "/v1/chat/completions",
            &chat,
            "structured_outputs",
            json!([nothing, nothing, "a+", nothing, nothing]),
        ),
        ("/v1/chat/completions", &chat, "tools", json!([tool, ["function"]])),
        ("/v1/chat/completions", &chat, "messages", json!([["user", "Once"]])),
        ("/v1/chat/completions", &chat, "messages", json!([{"role": "user", "content": [["text", "Once"]]}])),
        ("/v1/completions", &json!({"prompt": "Once"}), "stream_options", json!([true, false])),
        ("/v1/responses", &responses, "stream_options", json!([true])),
        ("/v1/responses", &responses, "stream_options", json!([true, false])),
        ("/v1/responses", &responses, "text", json!([{"type": "text"}])),
        ("/v1/responses", &responses, "text", json!({"format": ["text"]})),
        ("/v1/responses", &responses, "reasoning", json!([nothing, nothing])),
        ("/v1/responses", &responses, "tools", json!([["function", "f", nothing, nothing, nothing]])),
        ("/v1/responses", &responses, "tool_choice", json!(["function", "f"])),
        ("/v1/responses", &responses, "input", json!([["message", "user", "Once"]])),
        ("/v1/messages", &anthropic, "messages", json!([["user", "Once"]])),
        ("/v1/messages", &anthropic, "system", json!([["text", "Once"]])),
        ("/v1/messages", &anthropic, "tool_choice", json!(["none"])),
        ("/v1/messages", &anthropic, "output_config", json!([nothing, nothing])),
        (
            "/v1/messages/count_tokens",
            &json!({"model": "stories260k"}),
            "messages",
            json!([["user", "Once"]]),
        ),
        ("/api/chat", &ollama, "messages", json!([["user", "Once", nothing, nothing]])),
        ("/api/chat", &ollama, "options", json!([1])),
        ("/tokenize", &json!({}), "messages", json!([["user", "Once"]])),
    ] {
        let mut body = body.clone();
        body[name] = list;
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
    }
    // Bodies, too.
    for (path, list) in [
        ("/v1/completions", json!([["Once"]])),
        ("/detokenize", json!([nothing, [1, 2]])),
        ("/api/show", json!(["stories260k", nothing])),
        ("/v1/embeddings", json!([nothing, "Once"])),
    ] {
        assert_eq!(status(path, &list), 400, "{path} {list}");
    }
}
