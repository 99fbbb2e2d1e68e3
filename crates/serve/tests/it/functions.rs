//! `functions` and `function_call`, as older clients of OpenAI's API send them, and histories of calls.

use serde_json::{Value, json};

use crate::model_server::{post, refusal};
use crate::tools::{PATH, shared};

fn body(more: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]});
    let mut body = json!({"messages": [{"role": "user", "content": "Is it day?"}], "max_tokens": 60,
        "functions": [{"name": "look", "parameters": parameters}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_call_of_a_function_comes_under_its_old_name() {
    let forced = body(json!({"function_call": {"name": "look"}}));
    let reply = post(shared(), PATH, &forced).json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call", "{reply}");
    let message = &choice["message"];
    assert_eq!((&message["content"], message.get("tool_calls")), (&Value::Null, None));
    assert_eq!(message["function_call"]["name"], "look");
    let arguments = message["function_call"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap()["up"].is_boolean(), "{arguments}");
    let mut streamed = forced;
    streamed["stream"] = json!(true);
    let events = post(shared(), PATH, &streamed).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["function_call"]);
    let text = |name: &str| -> String { deltas.clone().filter_map(|delta| delta[name].as_str()).collect() };
    assert_eq!((text("name").as_str(), text("arguments").as_str()), ("look", arguments));
    let reasons: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.last(), Some(&&json!("function_call")));
}

#[test]
fn functions_are_the_tools_of_the_prompt() {
    let count = |body: Value| post(shared(), PATH, &body).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let functions = body(json!({"max_tokens": 1}));
    let mut tools = functions.clone();
    tools["tools"] = json!([{"type": "function", "function": functions["functions"][0]}]);
    tools.as_object_mut().unwrap().remove("functions");
    assert_eq!(count(functions.clone()), count(tools));
    assert!(count(functions) > count(body(json!({"max_tokens": 1, "function_call": "none"}))));
    // What was called, and its result.
    let called = json!({"role": "assistant", "content": null,
        "function_call": {"name": "look", "arguments": "{\"up\": true}"}});
    let result = json!({"role": "function", "name": "look", "content": "day"});
    let user = json!({"role": "user", "content": "Is it day?"});
    let old = json!({"messages": [user, called, result]});
    let call = json!({"id": "call00000", "type": "function", "function": called["function_call"]});
    let new = json!({"messages": [user, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "name": "look", "content": "day"}]});
    let tokens = |body: &Value| post(shared(), "/tokenize", body).json()["tokens"].clone();
    assert_eq!(tokens(&old), tokens(&new));
}

#[test]
fn wrong_functions_and_histories_are_refused_with_their_field() {
    let refused = |more: Value| {
        let (status, _, param) = refusal(&post(shared(), PATH, &body(more)));
        assert_eq!(status, 400);
        param
    };
    assert_eq!(refused(json!({"functions": [{}]})), "functions");
    assert_eq!(refused(json!({"functions": null, "function_call": "auto"})), "function_call");
    assert_eq!(refused(json!({"functions": [], "function_call": {"name": "look"}})), "function_call");
    assert_eq!(refused(json!({"function_call": {"name": "see"}})), "");
    assert_eq!(refused(json!({"tools": []})), "functions");
    let history = |message: Value| refused(json!({"messages": [{"role": "user", "content": "a"}, message]}));
    let called = json!({"name": "look", "arguments": "day"});
    assert_eq!(
        history(json!({"role": "assistant", "function_call": called})),
        "messages[1].function_call.arguments"
    );
    assert_eq!(history(json!({"role": "function", "content": "day"})), "messages[1].name");
    assert_eq!(history(json!({"role": "function", "name": "look", "content": "day"})), "messages[1].role");
    assert_eq!(history(json!({"role": "tool", "tool_call_id": "c1", "content": "day"})), "messages[1].role");
    assert_eq!(
        history(json!({"role": "user", "content": "a", "function_call": {"name": "look"}})),
        "messages[1].function_call"
    );
    let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let unknown = json!([{"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c2", "content": "day"}]);
    assert_eq!(refused(json!({"messages": unknown})), "messages[1].tool_call_id");
    let nameless = json!([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "day"},
        {"role": "tool", "content": "night"}]);
    assert_eq!(refused(json!({"messages": nameless})), "messages[2].tool_call_id");
    let see = json!([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "name": "see", "content": "day"}]);
    assert_eq!(refused(json!({"messages": see})), "messages[1].name");
    let begun = json!({"role": "assistant", "content": "a", "function_call": {"name": "look"}});
    assert_eq!(
        refused(json!({"messages": [begun], "continue_final_message": true})),
        "continue_final_message"
    );
    let both = json!({"response_format": {"type": "json_object"}, "guided_regex": "a"});
    assert_eq!(refused(both), "response_format");
    let tools = json!({"guided_regex": "a"});
    assert_eq!(refused(tools), "guided_regex");
    let ollama = json!({"model": "stories260k", "messages": [{"role": "tool", "content": "day"}]});
    let reply = post(shared(), "/api/chat", &ollama);
    assert!(reply.status == 400 && reply.body.contains("messages[0].role"), "{}", reply.body);
}
