//! `/v1/responses`.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::anthropic::with_tools;
use crate::client::HttpReply;
use crate::model_server::{post, refusal, shared};

const PATH: &str = "/v1/responses";

fn body(more: Value) -> Value {
    let mut body = json!({"model": "stories260k", "input": "Once upon a time", "max_output_tokens": 24});
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn whole(address: SocketAddr, more: &Value) -> Value {
    let reply = post(address, PATH, &body(more.clone()));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// The events of a streamed reply, numbered from 0.
fn events(reply: &HttpReply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"), "{reply:?}");
    let event = |(number, text): (usize, &str)| {
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        data
    };
    reply.body.split_terminator("\n\n").enumerate().map(event).collect()
}

fn streamed(address: SocketAddr, more: &Value) -> Vec<Value> {
    let mut body = body(more.clone());
    body["stream"] = json!(true);
    events(&post(address, PATH, &body))
}

/// A reply without what differs between equal requests: ids, the time and what was cached.
fn stable(mut response: Value) -> Value {
    let id = |value: &mut Value, prefix: &str| {
        assert!(value.as_str().unwrap().starts_with(prefix), "{value}");
        *value = prefix.into();
    };
    id(&mut response["id"], "resp_");
    for item in response["output"].as_array_mut().unwrap() {
        let prefix = match item["type"].as_str().unwrap() {
            "message" => "msg_",
            "function_call" => "fc_",
            _ => "rs_",
        };
        id(&mut item["id"], prefix);
    }
    response["created_at"] = Value::Null;
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

#[test]
fn a_whole_reply_is_the_librarys() {
    let reply = whole(shared(), &json!({"metadata": {"a": "b"}, "store": false}));
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    let request = girih::Request::new("Once upon a time").max_tokens(24);
    let text = session.generate(request).unwrap().text().unwrap();
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    assert_eq!(reply["output"][0]["content"], json!([part]));
    assert_eq!(reply["output"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&reply["status"], &reply["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(reply["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(reply["usage"]["output_tokens"], 24);
    assert_eq!(reply["metadata"], json!({"a": "b"}));
    assert_eq!((&reply["store"], &reply["error"]), (&json!(false), &Value::Null));
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "Once upon a time"}]}]);
    assert_eq!(whole(shared(), &json!({"input": items}))["output"][0]["content"], json!([part]));
}

#[test]
fn a_streamed_reply_has_the_events_of_the_official_client() {
    let more = json!({"max_output_tokens": 2});
    let events = streamed(shared(), &more);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!(events[0]["response"]["output"], json!([]));
    assert_eq!(events[2]["item"]["content"], json!([]));
    assert_eq!(
        events[3]["part"],
        json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
    );
    let id = &events[2]["item"]["id"];
    for event in &events[3..8] {
        assert_eq!((&event["item_id"], &event["output_index"]), (id, &json!(0)));
        assert_eq!(event["content_index"], 0);
    }
    assert_eq!((&events[4]["delta"], &events[5]["delta"]), (&json!(","), &json!(" there")));
    assert_eq!(events[6]["text"], ", there");
    assert_eq!(events[8]["item"], events[9]["response"]["output"][0]);
    assert_eq!(stable(events[9]["response"].clone()), stable(whole(shared(), &more)));
}

#[test]
fn a_forced_call_has_the_arguments_of_its_schema() {
    let tool = json!({"type": "function", "name": "look", "strict": true, "parameters": {"type": "object",
        "properties": {"up": {"type": "boolean"}}, "required": ["up"], "additionalProperties": false}});
    let choice = json!({"type": "function", "name": "look"});
    let more = json!({"tools": [tool], "tool_choice": choice, "parallel_tool_calls": false,
        "max_output_tokens": 200});
    let reply = whole(with_tools(), &more);
    let call = &reply["output"][0];
    assert_eq!(
        (&reply["status"], &call["type"], &call["name"]),
        (&json!("completed"), &json!("function_call"), &json!("look"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["up"].is_boolean());
    assert_eq!(reply["tool_choice"], choice);
    let events = streamed(with_tools(), &more);
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let text: String =
        of("response.function_call_arguments.delta").map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(call["arguments"], text);
    assert_eq!(of("response.function_call_arguments.done").next().unwrap()["arguments"], text);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(stable(last["response"].clone()), stable(reply.clone()));
    // The call and its result go back as they are.
    let items = json!([{"role": "user", "content": "Is it day?"}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "Once upon a time"}]);
    let answer = whole(with_tools(), &json!({"tools": [tool], "input": items}));
    assert_eq!(answer["output"][0]["type"], "message");
}

#[test]
fn formats_and_log_probabilities_are_those_of_chats() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "age", "schema": schema, "strict": true}});
    let reply = whole(shared(), &json!({"text": format, "max_output_tokens": 100}));
    assert_eq!(reply["status"], "completed");
    let value: Value =
        serde_json::from_str(reply["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!([3, 4].contains(&value["age"].as_i64().unwrap()));
    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let reply = whole(shared(), &more);
    let logprobs = reply["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 24);
    assert_eq!(logprobs[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let events = streamed(shared(), &more);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed: Vec<&Value> = deltas.flat_map(|event| event["logprobs"].as_array().unwrap()).collect();
    assert_eq!(streamed, logprobs.iter().collect::<Vec<_>>());
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let of = |more: Value| {
        let (status, code, param) = refusal(&post(shared(), PATH, &body(more)));
        assert_eq!(status, 400);
        format!("{code} {param}")
    };
    assert_eq!(of(json!({"previous_response_id": "resp_1"})), "unsupported_parameter previous_response_id");
    assert_eq!(of(json!({"conversation": "conv_1"})), "unsupported_parameter conversation");
    assert_eq!(of(json!({"store": true})), "unsupported_parameter store");
    assert_eq!(of(json!({"background": true})), "unsupported_parameter background");
    assert_eq!(of(json!({"unheard_of": 1})), "unknown_parameter unheard_of");
    assert_eq!(of(json!({"truncation": "auto"})), "invalid_value truncation");
    assert_eq!(of(json!({"include": ["file_search_call.results"]})), "unsupported_parameter include");
    assert_eq!(of(json!({"tools": [{"type": "web_serch"}]})), "invalid_value tools");
    let search = json!([{"type": "web_search", "external_web_access": true}]);
    assert_eq!(of(json!({"tools": search, "tool_choice": "required"})), "invalid_value tool_choice");
    assert_eq!(of(json!({"tool_choice": "required"})), "invalid_value tool_choice");
    assert_eq!(of(json!({"reasoning": {"effort": 1}})), "invalid_value reasoning");
    assert_eq!(of(json!({"max_output_tokens": 0})), "invalid_value max_output_tokens");
    assert_eq!(of(json!({"input": []})), "invalid_value input");
    assert_eq!(
        of(json!({"input": [{"type": "item_reference", "id": "a"}]})),
        "unsupported_parameter input[0]"
    );
    assert_eq!(
        post(shared(), PATH, &body(json!({"reasoning": {"summary": "auto"}, "background": false}))).status,
        200
    );
}

#[test]
fn what_codex_sends_beside_functions_is_left_out_and_named() {
    let function =
        json!({"type": "function", "name": "look", "strict": false, "parameters": {"type": "object"}});
    let agents = json!({"type": "namespace", "name": "agents", "description": "d", "tools": [function]});
    let reply = post(
        shared(),
        PATH,
        &body(
            json!({"tools": [agents, {"type": "web_search", "external_web_access": true}, {"type": "custom", "name": "a"}],
            "client_metadata": {"a": "b"}, "store": false, "include": ["reasoning.encrypted_content"]}),
        ),
    );
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.header("x-girih-without-effect"), Some("client_metadata, tools[0], tools[1], tools[2]"));
    assert_eq!(reply.json()["tools"], json!([]));
}
