//! `/v1/chat/completions`.

use crate::model_server::{options, post, refusal, shared, story};
use girih_serve::Server;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// The text of a streamed reply's choice.
fn streamed(events: &[Value], index: usize) -> String {
    let of_choice = events.iter().filter_map(|event| event["choices"].get(0));
    let of_choice = of_choice.filter(|choice| choice["index"] == index);
    of_choice.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

#[test]
fn a_whole_reply_is_the_librarys() {
    let reply = post(shared(), PATH, &story(json!({})));
    assert_eq!(reply.status, 200, "{reply:?}");
    let reply = reply.json();
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    // The template writes BOS and the text.
    let request = girih::Request::new("Once upon a time").max_tokens(24);
    let expected = session.generate(request).unwrap().text().unwrap();
    assert_eq!(reply["choices"][0]["message"]["content"], expected);
    assert_eq!(reply["choices"][0]["message"]["role"], "assistant");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], "stories260k");
    assert_eq!(reply["usage"]["completion_tokens"], 24);
    let tokens = session.model().tokenize("Once upon a time").unwrap().len();
    assert_eq!(reply["usage"]["prompt_tokens"], tokens);
    assert_eq!(reply["usage"]["total_tokens"], tokens + 24);
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
}

#[test]
fn a_streamed_reply_is_the_whole_one_in_pieces() {
    let whole = post(shared(), PATH, &story(json!({}))).json();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = post(shared(), PATH, &story(options)).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(streamed(&events, 0), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let [.., last, usage] = &events[..] else { panic!("{events:?}") };
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 24);
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
    assert!(events[0]["usage"].is_null() && events[0].get("usage").is_some());
    let plain = post(shared(), PATH, &story(json!({"stream": true}))).events();
    assert_eq!(plain.len(), events.len() - 1);
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn the_fingerprint_names_the_arithmetic() {
    let fingerprint = |address, body: Value| {
        let reply = post(address, PATH, &story(body));
        reply.json()["system_fingerprint"].as_str().unwrap().to_owned()
    };
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    let usual = fingerprint(shared(), json!({}));
    assert_eq!(usual, format!("girih-{}-{}", env!("CARGO_PKG_VERSION"), session.arithmetic()));
    let events = post(shared(), PATH, &story(json!({"stream": true}))).events();
    assert!(events.iter().all(|event| event["system_fingerprint"] == usual));
    let mut rounded = options();
    let backend = girih::backend("cpu").unwrap().with("act-precision", "bf16").unwrap();
    rounded.models[0].run_options.backend = backend;
    let server = Server::start(rounded).unwrap();
    let other = fingerprint(server.address(), json!({}));
    assert_eq!(other, usual.replace("-f32-kv-", "-bf16-kv-"), "other bits");
    assert_ne!(other, usual);
}

#[test]
fn several_replies_have_seeds_that_follow_each_other() {
    let several = story(json!({"n": 3, "temperature": 1.0, "seed": 7}));
    let reply = post(shared(), PATH, &several).json();
    let texts: Vec<&Value> =
        reply["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]["content"]).collect();
    assert_eq!(texts.len(), 3);
    assert_ne!(texts[0], texts[1]);
    let third = post(shared(), PATH, &story(json!({"temperature": 1.0, "seed": 9}))).json();
    assert_eq!(texts[2], &third["choices"][0]["message"]["content"]);
    let mut streaming = several;
    streaming["stream"] = json!(true);
    let events = post(shared(), PATH, &streaming).events();
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(streamed(&events, index), text.as_str().unwrap());
    }
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let of = |more: Value| {
        let (status, code, param) = refusal(&post(shared(), PATH, &story(more)));
        assert!(status == 400 || status == 404, "{status}");
        format!("{code} {param}")
    };
    assert_eq!(of(json!({"unknown": 1})), "unknown_parameter unknown");
    assert_eq!(of(json!({"temperature": "hot"})), "invalid_value temperature");
    assert_eq!(of(json!({"temperature": -1})), "invalid_value temperature");
    assert_eq!(of(json!({"n": 9})), "invalid_value n");
    assert_eq!(of(json!({"model": "other"})), "model_not_found model");
    assert_eq!(of(json!({"messages": []})), "invalid_value messages");
    assert_eq!(of(json!({"top_logprobs": 3})), "invalid_value top_logprobs");
    assert_eq!(of(json!({"logprobs": true, "top_logprobs": 21})), "invalid_value top_logprobs");
    assert_eq!(of(json!({"stop": vec!["a"; 17]})), "invalid_value stop");
    assert_eq!(of(json!({"tool_choice": "required"})), "invalid_value tool_choice");
    assert_eq!(of(json!({"think": true, "enable_thinking": false})), "invalid_value enable_thinking");
    assert_eq!(of(json!({"chat_template_kwargs": {"tools": 1}})), "invalid_value chat_template_kwargs");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    assert_eq!(
        of(json!({"messages": [{"role": "user", "content": image}]})),
        "unsupported_parameter messages[0].content[0]"
    );
    let long = "word ".repeat(600);
    assert_eq!(of(json!({"messages": [{"role": "user", "content": long}]})), "context_length_exceeded ");
}

/// The bug: a template that failed because of a client's variable was a fault of the server.
#[test]
fn a_template_that_fails_with_a_clients_variables_is_the_clients_fault() {
    let with_template = |template: &str| {
        let mut options = options();
        options.models[0].open_options.chat_template = Some(template.to_owned());
        Server::start(options).unwrap()
    };
    let variables = json!({"chat_template_kwargs": {"level": "high"}, "max_tokens": 2});
    let adds = with_template("{{ messages[0].content }}{{ (level or 0) + 1 }}");
    assert_eq!(post(adds.address(), PATH, &story(json!({"max_tokens": 2}))).status, 200);
    let ask = story(variables.clone());
    let expected = (400, "invalid_value".to_owned(), "chat_template_kwargs".to_owned());
    assert_eq!(refusal(&post(adds.address(), PATH, &ask)), expected);
    let messages = json!({"messages": ask["messages"], "chat_template_kwargs": {"level": "high"}});
    assert_eq!(refusal(&post(adds.address(), "/tokenize", &messages)), expected);
    adds.stop();
    // One that fails without them is the server's.
    let fails = with_template("{{ 'a' + 1 }}");
    assert_eq!(refusal(&post(fails.address(), PATH, &story(variables))).0, 500);
    fails.stop();
}

#[test]
fn log_probabilities_cover_each_token() {
    let options = json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 8});
    let reply = post(shared(), PATH, &story(options.clone())).json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert!(text.contains("there was"), "{text}");
    for token in content {
        // Greedy: the chosen token is the most likely one.
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        assert_eq!(token["bytes"].as_array().unwrap().len(), token["token"].as_str().unwrap().len());
    }
    let mut streaming = story(options);
    streaming["stream"] = json!(true);
    let events = post(shared(), PATH, &streaming).events();
    let lists = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(&lists.flatten().cloned().collect::<Vec<_>>(), content);
}

#[test]
fn a_repeated_prompt_is_cached() {
    let text = "Once upon a time, there was a little girl named Lily. She loved to play outside. ".repeat(3);
    let asked = story(json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2}));
    let first = post(shared(), PATH, &asked).json();
    let again = post(shared(), PATH, &asked).json();
    assert_eq!(first["choices"], again["choices"]);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached > prompt / 2 && cached < prompt, "{cached} of {prompt}");
}
