//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::net::SocketAddr;
use std::sync::OnceLock;

use girih_serve::Server;
use serde_json::{Value, json};

use crate::client::{Exchange, HttpReply};
use crate::model_server::{options, post, shared, story};

const PATH: &str = "/v1/messages";

/// A template that has tools, and whose calls are those of Hermes. Its reply may think.
const TOOL_TEMPLATE: &str =
    "<s>{{ tools }}{# <tool_call> <think> enable_thinking #}{{ messages[-1].content }}";

/// A server whose model has tools.
pub fn with_tools() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let start = || {
        let mut options = options();
        options.models[0].open_options.chat_template = Some(TOOL_TEMPLATE.to_owned());
        Server::start(options).unwrap()
    };
    SERVER.get_or_init(start).address()
}

/// The names and data of server-sent events.
fn events(reply: &HttpReply) -> Vec<(String, Value)> {
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"), "{reply:?}");
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        if name != "error" {
            assert_eq!(data["type"], name);
        }
        (name.to_owned(), data)
    };
    reply.body.split_terminator("\n\n").map(event).collect()
}

/// The message that a client makes of events: blocks are added up.
fn accumulated(events: &[(String, Value)]) -> Value {
    assert_eq!(events[0].0, "message_start", "{events:?}");
    assert_eq!(events.last().unwrap().0, "message_stop");
    let mut message = events[0].1["message"].clone();
    let mut blocks: Vec<Value> = Vec::new();
    let (mut arguments, mut is_open) = (String::new(), false);
    for (name, data) in &events[1..events.len() - 1] {
        let index = data["index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "content_block_start" => {
                assert!(!is_open && index == blocks.len());
                is_open = true;
                blocks.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(is_open && index + 1 == blocks.len());
                let delta = &data["delta"];
                for key in ["text", "thinking"] {
                    if let Some(text) = delta[key].as_str() {
                        assert_eq!(delta["type"], format!("{key}_delta"));
                        let before = blocks[index][key].as_str().unwrap().to_owned();
                        blocks[index][key] = (before + text).into();
                    }
                }
                if delta["type"] == "input_json_delta" {
                    arguments += delta["partial_json"].as_str().unwrap();
                }
            }
            "content_block_stop" => {
                assert!(std::mem::take(&mut is_open) && index + 1 == blocks.len());
                if !arguments.is_empty() {
                    blocks[index]["input"] = serde_json::from_str(&std::mem::take(&mut arguments)).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            other => panic!("{other}"),
        }
    }
    assert!(!is_open);
    message["content"] = blocks.into();
    message
}

/// The reply without what differs between equal requests: its id, and what was cached.
fn stable(mut message: Value) -> Value {
    let usage = &message["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    message["usage"] = json!([input, usage["output_tokens"]]);
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    message["id"] = Value::Null;
    message
}

/// The kind of an error and its sentence.
fn refusal(reply: &HttpReply) -> (u16, String, String) {
    let error = reply.json();
    assert_eq!(error["type"], "error", "{reply:?}");
    let text = |key: &str| error["error"][key].as_str().unwrap().to_owned();
    (reply.status, text("type"), text("message"))
}

#[test]
fn a_whole_reply_is_the_librarys() {
    let reply = post(shared(), PATH, &story(json!({})));
    assert_eq!(reply.status, 200, "{reply:?}");
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    let request = girih::Request::new("Once upon a time").max_tokens(24);
    let text = session.generate(request).unwrap().text().unwrap();
    let tokens = session.model().tokenize("Once upon a time").unwrap().len();
    let expected = json!({
        "id": null, "type": "message", "role": "assistant", "model": "stories260k",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "max_tokens", "stop_sequence": null, "usage": [tokens, 24],
    });
    assert_eq!(stable(reply.json()), expected);
    let count =
        json!({"model": "stories260k", "messages": [{"role": "user", "content": "Once upon a time"}]});
    let counted = post(shared(), "/v1/messages/count_tokens", &count).json();
    assert_eq!(counted, json!({"input_tokens": tokens}));
}

#[test]
fn a_streamed_reply_has_the_events_of_the_official_client() {
    let reply = post(shared(), PATH, &story(json!({"stream": true, "max_tokens": 2})));
    let mut lines: Vec<&str> = reply.body.lines().collect();
    let start: Value = serde_json::from_str(lines[1].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(start["message"]["content"], json!([]));
    assert_eq!(start["message"]["stop_reason"], Value::Null);
    assert_eq!(start["message"]["usage"]["output_tokens"], 0);
    lines[1] = "…";
    let usage = "\"usage\":{";
    let delta = lines.iter().position(|line| line.contains(usage)).unwrap();
    lines[delta] = lines[delta].split_once(usage).unwrap().0;
    let expected = "event: message_start\n…\n\n\
        event: content_block_start\n\
        data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
        event: content_block_delta\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\",\"}}\n\n\
        event: content_block_delta\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" there\"}}\n\n\
        event: content_block_stop\n\
        data: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
        event: message_delta\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null},\n\n\
        event: message_stop\n\
        data: {\"type\":\"message_stop\"}\n";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn a_stop_sequence_ends_a_reply_and_is_named() {
    let of = |stream: bool| story(json!({"stop_sequences": ["girl"], "stream": stream}));
    let whole = post(shared(), PATH, &of(false)).json();
    assert_eq!(whole["stop_reason"], "stop_sequence");
    assert_eq!(whole["stop_sequence"], "girl");
    assert!(whole["content"][0]["text"].as_str().unwrap().ends_with("little "));
    let streamed = accumulated(&events(&post(shared(), PATH, &of(true))));
    assert_eq!(stable(streamed), stable(whole));
}

#[test]
fn a_forced_call_has_the_arguments_of_its_schema() {
    let tool = |name: &str| {
        json!({"name": name, "description": "Looks.", "input_schema": {"type": "object",
            "properties": {"up": {"type": "boolean"}}, "required": ["up"], "additionalProperties": false}})
    };
    let of = |choice: Value, stream: bool| {
        let tools = json!([tool("look"), tool("see")]);
        let more = json!({"tools": tools, "tool_choice": choice, "stream": stream, "max_tokens": 200});
        post(with_tools(), PATH, &story(more))
    };
    let single = json!({"type": "tool", "name": "see", "disable_parallel_tool_use": true});
    let any = json!({"type": "any"});
    for (choice, name) in [(single, "see"), (any, "")] {
        let whole = of(choice.clone(), false).json();
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let call = &whole["content"][0];
        assert_eq!(call["type"], "tool_use");
        assert!(call["input"]["up"].is_boolean(), "{whole}");
        assert!(!call["id"].as_str().unwrap().is_empty());
        assert!(name.is_empty() || call["name"] == name);
        assert_eq!(stable(accumulated(&events(&of(choice, true)))), stable(whole));
    }
    let cut = story(json!({"tools": [tool("look")], "tool_choice": {"type": "any"}, "max_tokens": 40}));
    let cut = post(with_tools(), PATH, &cut).json();
    assert_eq!((&cut["stop_reason"], &cut["content"]), (&json!("max_tokens"), &json!([])), "{cut}");
}

#[test]
fn structured_outputs_follow_their_schema() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let reply = post(shared(), PATH, &story(json!({"output_config": format, "max_tokens": 100}))).json();
    assert_eq!(reply["stop_reason"], "end_turn", "{reply}");
    let value: Value = serde_json::from_str(reply["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!([3, 4].contains(&value["age"].as_i64().unwrap()));
}

#[test]
fn a_model_that_cannot_think_answers_without() {
    let of = |address, thinking: Value| post(address, PATH, &story(json!({"thinking": thinking})));
    let reply = of(shared(), json!({"type": "enabled"}));
    assert_eq!((reply.status, reply.header("x-girih-without-effect")), (200, Some("thinking")));
    assert_eq!(of(shared(), json!({"type": "disabled"})).status, 200);
    assert_eq!(of(with_tools(), json!({"type": "enabled", "budget_tokens": 1024})).status, 200);
    assert_eq!(of(with_tools(), json!({"type": "adaptive"})).status, 200);
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let of = |more: Value| {
        let (status, kind, message) = refusal(&post(shared(), PATH, &story(more)));
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{message}");
        message
    };
    let expect = |more: Value, part: &str| {
        let message = of(more);
        assert!(message.contains(part), "{message}");
    };
    expect(json!({"container": "a"}), "container must be null");
    expect(json!({"max_tokens": 0}), "max_tokens is 0");
    expect(json!({"temperature": -1}), "temperature");
    expect(json!({"tool_choice": {"type": "any"}}), "there are no tools");
    expect(json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools");
    expect(json!({"system": [{"type": "document"}]}), "system[0] has the type \"document\"");
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    expect(json!({"system": [image]}), "system[0] must be of the type text");
    expect(json!({"stop_sequences": vec!["a"; 17]}), "17");
    expect(json!({"thinking": {"type": "enabled", "display": "omitted"}}), "thinking");
    expect(json!({"messages": [{"role": "tool", "content": "a"}]}), "messages");
    let missing = json!({"model": "stories260k", "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(refusal(&post(shared(), PATH, &missing)).2, "the parameter max_tokens is missing");
    let (status, kind, _) = refusal(&post(shared(), PATH, &story(json!({"model": "other"}))));
    assert_eq!((status, kind.as_str()), (404, "not_found_error"));
    let count = post(shared(), "/v1/messages/count_tokens", &story(json!({})));
    assert!(refusal(&count).2.contains("\"max_tokens\" is not known"));
}

#[test]
fn a_budget_of_thinking_has_an_effect_on_a_model_that_thinks() {
    let all = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1});
    let reply = post(with_tools(), PATH, &story(all));
    assert_eq!((reply.status, reply.header("x-girih-without-effect")), (200, None));
    let all = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1});
    let reply = post(shared(), PATH, &story(all));
    let both = "thinking, thinking.budget_tokens";
    assert_eq!((reply.status, reply.header("x-girih-without-effect")), (200, Some(both)));
}

#[test]
fn the_billing_line_of_claude_code_costs_no_prefix() {
    let system = |line: &str| {
        json!([{"type": "text", "text": format!("x-anthropic-billing-header: {line}")},
            {"type": "text", "text": "You tell stories. ".repeat(12)}])
    };
    let of = |line: &str| post(shared(), PATH, &story(json!({"system": system(line), "max_tokens": 2})));
    let first = of("cch=1;");
    assert_eq!((first.status, first.header("x-girih-left-out")), (200, Some("x-anthropic-billing-header")));
    let (first, second) = (first.json(), of("cch=2; more=3;").json());
    assert_eq!(first["content"], second["content"]);
    let count = |line: &str| {
        let body = json!({"model": "stories260k", "messages": [{"role": "user", "content": "a"}], "system": system(line)});
        post(shared(), "/v1/messages/count_tokens", &body).json()["input_tokens"].clone()
    };
    assert_eq!(count("a"), count("a much longer line than that"));
    let plain = post(shared(), PATH, &story(json!({"system": "You tell stories.", "max_tokens": 2})));
    assert_eq!((plain.status, plain.header("x-girih-left-out")), (200, None));
}

#[test]
fn models_are_listed_in_the_form_of_the_client() {
    let address = shared();
    let of = |path: &str| {
        Exchange::begin(address, path, &[("anthropic-version", "2023-06-01")], "").finish().json()
    };
    let list = of("GET /v1/models");
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["display_name"]),
        (&json!("model"), &json!("stories260k"), &json!("stories260k"))
    );
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &model["id"], &model["id"])
    );
    assert_eq!(of("GET /v1/models/stories260k"), *model);
}
