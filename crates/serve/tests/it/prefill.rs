//! Replies that continue the last message of the conversation, which the client wrote.

use std::net::SocketAddr;
use std::sync::OnceLock;

use girih_serve::Server;
use serde_json::{Value, json};

use crate::model_server::{options, post, refusal};

const CHAT: &str = "/v1/chat/completions";

/// A template that closes messages of the assistant, and whose replies may think.
const TEMPLATE: &str = "<s>{{ tools }}{# <think> <tool_call> #}{% for message in messages %}{{ message.content | trim }}\
    {% if message.role == 'assistant' %}. The end.{% endif %}{% endfor %}";

const BEGUN: &str = ", there was a little";

fn address() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let start = || {
        let mut options = options();
        let template = TEMPLATE.replace("{{ tools }}", "{% if tools %}{{ tools[0].type }}{% endif %}");
        options.models[0].open_options.chat_template = Some(template);
        Server::start(options).unwrap()
    };
    SERVER.get_or_init(start).address()
}

fn messages(begun: &str) -> Value {
    json!([{"role": "user", "content": "Once upon a time"}, {"role": "assistant", "content": begun}])
}

fn sent(path: &str, body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = post(address(), path, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// What the model writes after a text.
fn continued(prompt: &str) -> Value {
    let body = json!({"prompt": prompt, "max_tokens": 12});
    sent("/v1/completions", &body, json!({}))["choices"][0]["text"].clone()
}

#[test]
fn the_last_message_of_the_assistant_is_continued_in_each_api() {
    let expected = continued("Once upon a time, there was a little");
    let body = json!({"model": "stories260k", "messages": messages(BEGUN), "max_tokens": 12});
    let chat = |more: Value| sent(CHAT, &body, more)["choices"][0]["message"]["content"].clone();
    assert_eq!(chat(json!({"continue_final_message": true, "add_generation_prompt": false})), expected);
    let prefix = json!([{"role": "user", "content": "Once upon a time"},
        {"role": "assistant", "content": BEGUN, "prefix": true}]);
    assert_eq!(chat(json!({"messages": prefix})), expected);
    // The template removes the space at the end, as it would after the whole message.
    let spaced = json!({"messages": messages(", there was a little "), "continue_final_message": true});
    assert_eq!(chat(spaced), expected);
    // OpenAI's own clients send earlier replies so, and do not mean this.
    assert_ne!(chat(json!({})), expected);
    let message = sent("/v1/messages", &body, json!({}));
    assert_eq!(message["content"][0]["text"], expected);
    let blocks = json!([{"role": "user", "content": "Once upon a time"},
        {"role": "assistant", "content": [{"type": "text", "text": BEGUN}]}]);
    assert_eq!(sent("/v1/messages", &body, json!({"messages": blocks}))["content"][0]["text"], expected);
    let ollama = json!({"model": "stories260k", "messages": messages(BEGUN), "stream": false,
        "options": {"num_predict": 12}});
    assert_eq!(sent("/api/chat", &ollama, json!({}))["message"]["content"], expected);
    // An empty message is a reply that is not begun yet.
    let empty = sent("/v1/messages", &body, json!({"messages": messages("")}));
    assert_eq!(empty["content"][0]["text"], continued("Once upon a time"));
}

#[test]
fn its_tokens_are_counted_and_its_thinking_goes_on() {
    let tokens = |begun: &str, more: Value| {
        let body = json!({"messages": messages(begun)});
        sent("/tokenize", &body, more)["tokens"].as_array().unwrap().clone()
    };
    let whole = tokens(BEGUN, json!({}));
    let open = tokens(BEGUN, json!({"continue_final_message": true}));
    assert_eq!(open[..], whole[..open.len()]);
    assert!(open.len() < whole.len());
    let body = json!({"model": "stories260k", "messages": messages(BEGUN)});
    assert_eq!(sent("/v1/messages/count_tokens", &body, json!({}))["input_tokens"], open.len());
    let body = json!({"messages": messages("<think> Lily"), "continue_final_message": true, "max_tokens": 8});
    let message = sent(CHAT, &body, json!({}))["choices"][0]["message"].clone();
    assert_eq!(
        (&message["content"], message["reasoning_content"].is_string()),
        (&json!(""), true),
        "{message}"
    );
    let body = json!({"messages": messages("<think>Lily</think> She"), "continue_final_message": true,
        "max_tokens": 8});
    let message = sent(CHAT, &body, json!({}))["choices"][0]["message"].clone();
    assert!(message["content"].is_string() && message["reasoning_content"].is_null(), "{message}");
}

#[test]
fn a_grammar_describes_the_rest_of_the_message() {
    let body = json!({"messages": messages("It is a"), "continue_final_message": true,
        "guided_choice": [" cat", " dog"]});
    let text = sent(CHAT, &body, json!({}))["choices"][0]["message"]["content"].clone();
    assert!(text == " cat" || text == " dog", "{text}");
}

#[test]
fn what_cannot_be_continued_is_refused_by_name() {
    let refused = |more: Value| {
        let mut body = json!({"messages": messages(BEGUN), "continue_final_message": true, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, _, param) = refusal(&post(address(), CHAT, &body));
        assert_eq!(status, 400);
        param
    };
    const PARAM: &str = "continue_final_message";
    assert_eq!(refused(json!({"add_generation_prompt": true})), PARAM);
    assert_eq!(refused(json!({"messages": [{"role": "user", "content": "a"}]})), PARAM);
    let call = json!({"type": "function", "function": {"name": "look", "arguments": "{}"}});
    let called = json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]);
    assert_eq!(refused(json!({"messages": called})), PARAM);
    let early =
        json!([{"role": "assistant", "content": "a", "prefix": true}, {"role": "user", "content": "a"}]);
    assert_eq!(refused(json!({"messages": early})), "messages[0].prefix");
    let tool = json!({"type": "function", "function": {"name": "look"}});
    assert_eq!(refused(json!({"tools": [tool], "tool_choice": "required"})), "tool_choice");
    let use_block = json!([{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]);
    let body = json!({"model": "stories260k", "max_tokens": 1, "messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": use_block}]});
    let reply = post(address(), "/v1/messages", &body);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("without a tool_result"), "{}", reply.body);
}
