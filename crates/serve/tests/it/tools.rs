//! Calls of tools, thinking and structured output over HTTP, on a template that teaches a style of calls.

use std::net::SocketAddr;
use std::sync::OnceLock;

use girih_serve::Server;
use serde_json::{Value, json};

use crate::model_server::{options, post, refusal};

pub const PATH: &str = "/v1/chat/completions";

/// A template in the style of Hermes, with a switch for thinking.
const TEMPLATE: &str = "<s>{{ tools }}{# <tool_call> <think> #}{% for message in messages %}{{ message.content }}\
    {% if message.tool_calls %}{{ message.tool_calls[0].function.arguments.up }}{% endif %}{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}!{% endif %}";

/// A server whose model has tools in the style of Hermes.
pub fn shared() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let start = || {
        let mut options = options();
        options.models[0].open_options.chat_template = Some(TEMPLATE.to_owned());
        Server::start(options).unwrap()
    };
    SERVER.get_or_init(start).address()
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {
        "type": "object",
        "properties": {"up": {"type": "boolean"}},
        "required": ["up"],
        "additionalProperties": false,
    }}}])
}

fn body(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Is it day?"}], "tools": tools()});
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// A reply as its stream builds it up.
#[derive(Default)]
struct Streamed {
    calls: Vec<(String, String, String)>,
    reason: String,
}

fn streamed(events: &[Value]) -> Streamed {
    let mut whole = Streamed::default();
    for choice in events.iter().map(|event| &event["choices"][0]) {
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (index, function) = (call["index"].as_u64().unwrap() as usize, &call["function"]);
            if index == whole.calls.len() {
                assert_eq!(call["type"], "function");
                whole.calls.push((text(&call["id"]), text(&function["name"]), String::new()));
            }
            whole.calls[index].2 += &text(&function["arguments"]);
        }
        whole.reason = choice["finish_reason"].as_str().map_or(whole.reason, str::to_owned);
    }
    whole
}

#[test]
fn a_forced_call_is_a_call_whole_and_streamed() {
    let named = json!({"type": "function", "function": {"name": "look"}});
    for choice in [json!("required"), named] {
        let reply = post(shared(), PATH, &body(json!({"tool_choice": choice}))).json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
        assert_eq!(message["content"], Value::Null);
        let call = &message["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("look")));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(arguments).unwrap()["up"].is_boolean(), "{arguments}");
        let events = post(shared(), PATH, &body(json!({"tool_choice": choice, "stream": true}))).events();
        let whole = streamed(&events);
        assert_eq!(whole.reason, "tool_calls");
        let id = call["id"].as_str().unwrap().to_owned();
        assert_eq!(whole.calls, [(id, "look".to_owned(), arguments.to_owned())]);
    }
}

#[test]
fn calls_and_their_answers_are_read_back() {
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"up\": true}"}});
    let asked = json!({"role": "user", "content": "Is it day?"});
    let called = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]});
    let answer =
        json!({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "It is."}]});
    let messages = json!([asked, called, answer]);
    let reply =
        post(shared(), PATH, &body(json!({"messages": messages, "max_tokens": 4, "tool_choice": "none"})));
    assert_eq!(reply.status, 200, "{reply:?}");
    // The template writes the argument, which was a text in the request.
    let tokens = |messages: &Value| {
        post(shared(), "/tokenize", &json!({"messages": messages, "tools": []})).json()["tokens"].clone()
    };
    let flat = json!([{"role": "user", "content": "Is it day?"}, {"role": "user", "content": "TrueIt is."}]);
    let text =
        |tokens: Value| post(shared(), "/detokenize", &json!({"tokens": tokens})).json()["prompt"].clone();
    assert_eq!(text(tokens(&messages)), text(tokens(&flat)));
    let mut wrong = messages.clone();
    wrong[1]["tool_calls"][0]["function"]["arguments"] = json!("no JSON");
    assert_eq!(
        refusal(&post(shared(), PATH, &body(json!({"messages": wrong})))).2,
        "messages[1].tool_calls[0].function.arguments"
    );
}

#[test]
fn a_schema_shapes_the_reply() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "age", "strict": true, "schema": schema}});
    let asked = json!({"messages": [{"role": "user", "content": "Lily is"}], "response_format": format});
    let reply = post(shared(), PATH, &asked).json();
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(content).unwrap();
    assert!(value == json!({"age": 3}) || value == json!({"age": 4}), "{content}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let refused = |more: Value| refusal(&post(shared(), PATH, &body(more)));
    let both = json!({"response_format": {"type": "json_object"}});
    assert_eq!(refused(both), (400, "unsupported_parameter".to_owned(), "response_format".to_owned()));
    let large = json!({"type": "object", "description": "x".repeat(70_000)});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": large}});
    assert_eq!(refused(json!({"response_format": format, "tools": null})).2, "response_format");
    assert_eq!(refused(json!({"response_format": {"type": "xml"}})).2, "response_format");
}

#[test]
fn tools_and_efforts_that_do_not_fit_are_refused_by_name() {
    let refused = |more: Value| {
        let (status, _, param) = refusal(&post(shared(), PATH, &body(more)));
        assert_eq!(status, 400);
        param
    };
    assert_eq!(refused(json!({"tools": [{"name": "look"}]})), "tools");
    assert_eq!(refused(json!({"tools": vec![tools()[0].clone(); 2]})), "tools");
    assert_eq!(refused(json!({"tool_choice": "sometimes"})), "tool_choice");
    assert_eq!(refused(json!({"messages": [{"role": "robot", "content": "a"}]})), "messages");
    assert_eq!(refused(json!({"chat_template_kwargs": {"bos_token": "x"}})), "chat_template_kwargs");
    let spoken = |more: Value| {
        let asked = json!({"messages": [{"role": "user", "content": "Is it day?"}], "max_tokens": 1});
        let Value::Object(mut asked) = asked else { unreachable!("it is one") };
        asked.extend(more.as_object().unwrap().clone());
        post(shared(), PATH, &Value::Object(asked)).json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    // Without thinking, the template writes one more character.
    let plain = spoken(json!({}));
    assert_eq!(spoken(json!({"reasoning_effort": "none"})), plain + 1);
    assert_eq!(spoken(json!({"reasoning_effort": "high"})), plain);
    assert_eq!(spoken(json!({"chat_template_kwargs": {"enable_thinking": false}})), plain + 1);
}
