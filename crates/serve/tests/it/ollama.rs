//! Ollama's API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use girih_serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::anthropic::with_tools;
use crate::client::{Exchange, HttpReply};
use crate::model_server::{get, options, post, shared};

/// A body with this model, a text and at most 24 tokens.
fn body(more: Value) -> Value {
    let mut body = json!({"model": "stories260k:latest", "options": {"num_predict": 24}});
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn chat(more: Value) -> Value {
    let mut body = body(json!({"messages": [{"role": "user", "content": "Once upon a time"}]}));
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn lines(reply: &HttpReply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"), "{reply:?}");
    assert!(reply.body.ends_with('\n'));
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sentence of an error.
fn refusal(reply: &HttpReply) -> (u16, String) {
    (reply.status, reply.json()["error"].as_str().unwrap_or_else(|| panic!("{reply:?}")).to_owned())
}

/// The library's continuation of a text.
fn expected() -> String {
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    session.generate(girih::Request::new("Once upon a time").max_tokens(24)).unwrap().text().unwrap()
}

#[test]
fn a_chat_is_streamed_as_lines_by_default() {
    let all = lines(&post(shared(), "/api/chat", &chat(json!({}))));
    let (last, pieces) = all.split_last().unwrap();
    let text: String = pieces.iter().map(|piece| piece["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, expected());
    for piece in pieces {
        assert_eq!((&piece["done"], &piece["model"]), (&json!(false), &json!("stories260k")));
        assert_eq!(piece["message"]["role"], "assistant");
        let keys: Vec<&String> = piece.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["model", "created_at", "message", "done"]);
    }
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!(last["message"]["content"], "");
    assert_eq!(last["eval_count"], 24);
    for key in ["total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration"] {
        assert!(last[key].as_u64().unwrap() > 0, "{last}");
    }
    assert!(last["load_duration"].is_u64());
    let created = last["created_at"].as_str().unwrap();
    assert!(created.len() == 30 && created.ends_with('Z'), "{created}");
    let whole = post(shared(), "/api/chat", &chat(json!({"stream": false}))).json();
    assert_eq!(whole["message"], json!({"role": "assistant", "content": expected()}));
    assert_eq!(whole["done"], true);
}

#[test]
fn a_text_is_continued_with_and_without_the_template() {
    let of = |more: Value| post(shared(), "/api/generate", &body(more));
    for raw in [false, true] {
        let whole = of(json!({"prompt": "Once upon a time", "raw": raw, "stream": false})).json();
        assert_eq!(whole["response"], expected());
        assert!(whole.get("message").is_none() && whole.get("context").is_none());
        let pieces = lines(&of(json!({"prompt": "Once upon a time", "raw": raw})));
        let text: String = pieces.iter().map(|piece| piece["response"].as_str().unwrap()).collect();
        assert_eq!(text, expected());
    }
    let stops = json!({"stop": ["girl"], "seed": 3});
    let stopped = of(json!({"prompt": "Once upon a time", "options": stops, "stream": false})).json();
    assert!(stopped["response"].as_str().unwrap().ends_with("little "));
    assert_eq!(stopped["done_reason"], "stop");
    let loaded = of(json!({"stream": false})).json();
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
    assert_eq!(loaded["response"], "");
}

#[test]
fn a_format_is_followed() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "additionalProperties": false});
    let of = |format: Value| {
        let more = json!({"format": format, "options": {"num_predict": 100}, "stream": false});
        let reply = post(shared(), "/api/chat", &chat(more)).json();
        reply["message"]["content"].as_str().unwrap().to_owned()
    };
    let value: Value = serde_json::from_str(&of(schema)).unwrap();
    assert!([3, 4].contains(&value["age"].as_i64().unwrap()));
    assert!(of(json!("json")).starts_with('{'));
    assert_eq!(post(shared(), "/api/chat", &chat(json!({"format": ""}))).status, 200);
    assert!(refusal(&post(shared(), "/api/chat", &chat(json!({"format": "xml"})))).1.starts_with("format"));
}

#[test]
fn log_probabilities_are_those_of_the_tokens() {
    let more = json!({"logprobs": true, "top_logprobs": 2, "stream": false});
    let whole = post(shared(), "/api/chat", &chat(more.clone())).json();
    let logprobs = whole["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 24);
    assert_eq!(logprobs[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(logprobs[0]["token"], ",");
    let mut streamed = more;
    streamed["stream"] = json!(true);
    let pieces = lines(&post(shared(), "/api/chat", &chat(streamed)));
    let streamed: Vec<&Value> =
        pieces.iter().filter_map(|piece| piece["logprobs"].as_array()).flatten().collect();
    assert_eq!(streamed, logprobs.iter().collect::<Vec<_>>());
}

#[test]
fn tools_are_read_and_their_results_come_back() {
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object",
        "properties": {"up": {"type": "boolean"}}}}});
    let messages = json!([
        {"role": "user", "content": "Is it day?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"up": true}}}]},
        {"role": "tool", "tool_name": "look", "content": "Once upon a time"},
    ]);
    let more = json!({"tools": [tool], "messages": messages, "stream": false, "think": true});
    let reply = post(with_tools(), "/api/chat", &chat(more));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(!reply.json()["message"]["content"].as_str().unwrap().is_empty());
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let of = |more: Value| refusal(&post(shared(), "/api/chat", &chat(more)));
    let expect = |more: Value, part: &str| {
        let (status, message) = of(more);
        assert!(status == 400 && message.contains(part), "{status} {message}");
    };
    expect(json!({"unknown": 1}), "the parameter \"unknown\" is not known");
    expect(json!({"options": {"vocab_only": true}}), "options.vocab_only must be false");
    expect(json!({"options": {"tfs_z": 0.5}}), "options.tfs_z must be 1");
    expect(json!({"options": {"repeat_last_n": -2}}), "options.repeat_last_n is -2");
    expect(json!({"options": {"mirostat": 1}}), "options.mirostat is 1");
    expect(json!({"options": {"num_predict": -3}}), "options.num_predict is -3");
    expect(json!({"options": {"temperature": "hot"}}), "options");
    expect(json!({"think": true}), "think has no effect on this model");
    expect(json!({"top_logprobs": 2}), "top_logprobs needs logprobs");
    expect(json!({"messages": [{"role": "user", "content": "", "images": ["AA=="]}]}), "messages[0].images");
    let fits = post(shared(), "/api/chat", &chat(json!({"options": {"num_ctx": 256, "num_predict": 2}})));
    assert_eq!(fits.status, 200);
    let generate = |more: Value| refusal(&post(shared(), "/api/generate", &body(more))).1;
    assert!(generate(json!({"prompt": "a", "template": "b"})).starts_with("template is not supported"));
    assert!(generate(json!({"prompt": "a", "suffix": "b"})).contains("has no tokens for it"));
    assert!(generate(json!({"prompt": "a", "context": [1]})).starts_with("context is not supported"));
    let (status, message) = refusal(&post(shared(), "/api/chat", &chat(json!({"model": "other:7b"}))));
    assert!(status == 404 && message.contains("there is no model \"other:7b\""));
    for (head, body) in [("POST /api/pull", r#"{"model":"a"}"#), ("DELETE /api/delete", r#"{"model":"a"}"#)] {
        let reply = Exchange::begin(shared(), head, &[], body).finish();
        let (status, message) = refusal(&reply);
        assert!(status == 501 && message.contains("decided when the server starts"), "{message}");
    }
    let embed = json!({"model": "stories260k", "input": "a cat"});
    let (status, message) = refusal(&post(shared(), "/api/embed", &embed));
    assert!(status == 400 && message.contains("defines no embeddings"), "{message}");
}

#[test]
fn what_is_served_is_told() {
    let tags = get(shared(), "/api/tags").json();
    let model = &tags["models"][0];
    assert_eq!(model["name"], "stories260k");
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert_eq!(model["details"]["family"], "llama");
    assert!(model["size"].as_u64().unwrap() > 500_000);
    let shown = post(shared(), "/api/show", &json!({"model": "stories260k:latest"})).json();
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert_eq!(shown["model_info"]["llama.context_length"], 512);
    assert_eq!(shown["capabilities"], json!(["completion"]));
    assert_eq!(shown["template"], girih::BUILT_IN_TEMPLATE);
    let shown = post(with_tools(), "/api/show", &json!({"model": "stories260k"})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    let server = Server::start(options()).unwrap();
    let loaded = get(server.address(), "/api/ps").json();
    assert_eq!(loaded["models"][0]["model"], "stories260k");
    assert_eq!(loaded["models"][0]["size_vram"], 0);
    assert_eq!(loaded["models"][0]["context_length"], 512);
    assert_eq!(loaded["models"][0]["expires_at"], "9999-12-31T23:59:59Z");
    assert_eq!(get(server.address(), "/api/version").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    server.stop();
}

#[test]
fn a_loaded_model_expires_when_it_is_unloaded() {
    let idle = Duration::from_secs(3600);
    let server = Server::start(ServeOptions { unload_idle: Some(idle), ..options() }).unwrap();
    let loaded = get(server.address(), "/api/ps").json();
    let expires_at = loaded["models"][0]["expires_at"].as_str().unwrap().to_owned();
    let at = |ahead: u64| {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        girih_serve::api::ollama::timestamp::rfc3339(since_1970 + Duration::from_secs(ahead))
    };
    // Moments of one length are in the order of their text.
    assert!(at(3500) < expires_at && expires_at <= at(3601), "{expires_at}");
    server.stop();
}

#[test]
fn the_size_of_the_context_is_the_servers() {
    let reply = |more: Value| post(shared(), "/api/chat", &chat(more));
    let large = reply(json!({"options": {"num_ctx": 100_000, "num_predict": 2}, "stream": false}));
    assert_eq!((large.status, large.header("x-girih-without-effect")), (200, Some("options.num_ctx")));
    let long = json!([{"role": "user", "content": "word ".repeat(600)}]);
    let (status, message) = refusal(&reply(json!({"messages": long, "options": {"num_ctx": 100_000}})));
    assert!(status == 400 && message.contains("the context is 512"), "{message}");
    let show = json!({"model": "stories260k", "verbose": true});
    let shown = post(shared(), "/api/show", &show);
    assert_eq!((shown.status, shown.header("x-girih-without-effect")), (200, Some("verbose")));
}
