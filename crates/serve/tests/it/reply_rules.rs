//! Budgets of thinking, and replies that repeat themselves.

use std::net::SocketAddr;
use std::sync::OnceLock;

use girih::RepetitionRule;
use girih_serve::{ReplyRules, ServeOptions, Server};
use serde_json::{Value, json};

use crate::model_server::{options, post, shared};

/// A template that opens the thinking of the reply.
const TEMPLATE: &str =
    "<s>{# <tool_call> </think> #}{% for message in messages %}{{ message.content }}{% endfor %}<think>";

fn with_rules(rules: ReplyRules) -> Server {
    let mut options = ServeOptions { reply_rules: rules, ..options() };
    options.models[0].open_options.chat_template = Some(TEMPLATE.to_owned());
    Server::start(options).unwrap()
}

fn thinker() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| with_rules(ReplyRules { max_thinking: Some(12), repetition: None })).address()
}

fn asked(more: Value) -> Value {
    let mut body = json!({"model": "stories260k", "max_tokens": 40,
        "messages": [{"role": "user", "content": "Once upon a time"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: Value) -> Value {
    let reply = post(thinker(), "/v1/chat/completions", &asked(more));
    assert_eq!((reply.status, reply.header("x-girih-without-effect")), (200, None), "{}", reply.body);
    reply.json()
}

#[test]
fn thinking_ends_after_its_budget_and_the_answer_begins() {
    let whole = chat(json!({"thinking_token_budget": -1}));
    let message = &whole["choices"][0]["message"];
    let thinking = message["reasoning_content"].as_str().unwrap();
    assert!(!message["content"].as_str().unwrap().is_empty(), "{message}");
    for (more, tokens) in [
        (json!({"reasoning": {"max_tokens": 5}}), 5),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), 5),
        (json!({"thinking_token_budget": 5}), 5),
        // The server's own is the maximum.
        (json!({"thinking_token_budget": 30}), 12),
    ] {
        let reply = chat(more.clone());
        let message = &reply["choices"][0]["message"];
        let short = message["reasoning_content"].as_str().unwrap();
        assert!(thinking.starts_with(short), "{more}: {short}");
        assert_eq!(short == thinking, tokens == 12, "{more}");
        // A text that is encoded by itself begins with a token of its own for the space.
        let ids = post(thinker(), "/tokenize", &json!({"prompt": short, "add_special_tokens": false}));
        assert!(ids.json()["count"].as_u64().unwrap() <= tokens + 1, "{short}");
        assert!(!message["content"].as_str().unwrap().is_empty(), "{more}");
        assert_eq!(chat(more)["choices"], reply["choices"]);
    }
    let none = chat(json!({"thinking_token_budget": 0}));
    assert!(none["choices"][0]["message"].get("reasoning_content").is_none(), "{none}");
    let message = asked(json!({"thinking": {"type": "enabled", "budget_tokens": 5}}));
    let message = post(thinker(), "/v1/messages", &message).json();
    let kinds: Vec<&Value> =
        message["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text"]);
}

#[test]
fn a_reply_that_repeats_itself_ends_with_its_own_reason() {
    let rule = RepetitionRule { tokens: 4, times: 3 };
    let server = with_rules(ReplyRules { max_thinking: Some(0), repetition: Some(rule) });
    let address = server.address();
    // One token that nothing can follow but itself.
    let forced = json!({"prompt": "Lily", "max_tokens": 60, "logit_bias": {"300": 100}});
    let reply = post(address, "/v1/completions", &forced).json();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &reply["usage"]["completion_tokens"]),
        (&json!("repetition"), &json!(12))
    );
    let free = post(shared(), "/v1/completions", &forced).json();
    assert_eq!(
        (&free["choices"][0]["finish_reason"], &free["usage"]["completion_tokens"]),
        (&json!("length"), &json!(60))
    );
    assert!(free["choices"][0]["text"].as_str().unwrap().starts_with(choice["text"].as_str().unwrap()));
    // A story has no such repetition.
    let story = json!({"prompt": "Once upon a time", "max_tokens": 40});
    assert_eq!(
        post(address, "/v1/completions", &story).json()["choices"],
        post(shared(), "/v1/completions", &story).json()["choices"]
    );
    let chat = asked(json!({"logit_bias": {"300": 100}}));
    let reply = post(address, "/v1/chat/completions", &chat).json();
    assert_eq!(reply["choices"][0]["finish_reason"], "repetition");
    server.stop();
}
