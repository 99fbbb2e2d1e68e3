//! `/v1/completions`, `/tokenize` and `/detokenize`.

use std::sync::atomic::{AtomicUsize, Ordering};

use girih::{Constraint, Error, Model, Prompt, Request, Result};
use girih_serve::{RequestHook, ServeOptions, Server};
use serde_json::{Value, json};

use crate::model_server::{options, post, refusal, shared};

const PATH: &str = "/v1/completions";

fn complete(body: &Value) -> Value {
    let reply = post(shared(), PATH, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn texts(reply: &Value) -> Vec<&str> {
    reply["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[test]
fn a_text_and_its_tokens_are_continued_alike() {
    let text = complete(&json!({"prompt": "Once upon a time", "max_tokens": 20}));
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["usage"]["completion_tokens"], 20);
    let tokens = post(shared(), "/tokenize", &json!({"prompt": "Once upon a time"})).json();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    assert_eq!(tokens["max_model_len"], 512);
    let ids = &tokens["tokens"];
    assert_eq!(texts(&complete(&json!({"prompt": ids, "max_tokens": 20}))), texts(&text));
    let lists = complete(&json!({"prompt": [ids, ids], "max_tokens": 20, "n": 2}));
    assert_eq!(texts(&lists), [texts(&text)[0]; 4]);
    assert_eq!(lists["choices"][3]["index"], 3);
    let both = complete(&json!({"prompt": ["Once upon a time", "Lily"], "max_tokens": 20}));
    assert_eq!(texts(&both)[0], texts(&text)[0]);
    // OpenAI's default.
    assert_eq!(complete(&json!({"prompt": "Lily"}))["usage"]["completion_tokens"], 16);
    let back = post(shared(), "/detokenize", &json!({"tokens": ids})).json();
    assert_eq!(back, json!({"prompt": "Once upon a time"}));
}

#[test]
fn an_echoed_prompt_has_its_log_probabilities() {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 4, "logprobs": 2, "echo": true});
    let reply = complete(&body);
    let choice = &reply["choices"][0];
    let plain = complete(&json!({"prompt": "Once upon a time", "max_tokens": 4}));
    assert_eq!(choice["text"], format!("Once upon a time{}", texts(&plain)[0]));
    let tokens = post(shared(), "/tokenize", &json!({"prompt": "Once upon a time"})).json();
    let count = tokens["count"].as_u64().unwrap() as usize + 4;
    let lists = &choice["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().unwrap().len(), count, "{list}");
    }
    assert_eq!(lists["token_logprobs"][0], Value::Null);
    assert_eq!(lists["top_logprobs"][0], Value::Null);
    assert!(lists["token_logprobs"][1].as_f64().unwrap() < 0.0);
    // Greedy: a chosen token is the most likely one.
    let last = &lists["tokens"][count - 1];
    assert_eq!(lists["top_logprobs"][count - 1][last.as_str().unwrap()], lists["token_logprobs"][count - 1]);
    // The prompt alone, as evaluations ask for it.
    let alone =
        complete(&json!({"prompt": "Once upon a time", "max_tokens": 0, "logprobs": 2, "echo": true}));
    assert_eq!(alone["choices"][0]["text"], "Once upon a time");
    let some = &lists["token_logprobs"].as_array().unwrap()[..count - 4];
    assert_eq!(alone["choices"][0]["logprobs"]["token_logprobs"], json!(some));
    let mut streaming = body;
    streaming["stream"] = json!(true);
    let events = post(shared(), PATH, &streaming).events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(choice["text"], text);
    let first = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(first.flatten().count(), count);
}

#[test]
fn a_stop_string_and_a_choice_end_a_text() {
    let plain = complete(&json!({"prompt": "Once upon a time", "max_tokens": 60}));
    let (before, _) = texts(&plain)[0].split_once("Lily").unwrap();
    let stopped = complete(&json!({"prompt": "Once upon a time", "max_tokens": 60, "stop": ["Lily"]}));
    assert_eq!(texts(&stopped), [before]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let choice = json!({"prompt": "Her name was", "structured_outputs": {"choice": [" Tom.", " A+B"]}});
    assert!([" Tom.", " A+B"].contains(&texts(&complete(&choice))[0]));
    let marks = json!({"prompt": "Her name was", "structured_outputs": {"choice": ["<yes>", "a > b"]}});
    assert!(["<yes>", "a > b"].contains(&texts(&complete(&marks))[0]));
    let names: Vec<String> = (0..1000).map(|number| format!("{number:062}")).collect();
    let many = json!({"prompt": "It was", "max_tokens": 100, "structured_outputs": {"choice": names}});
    assert!(names.iter().any(|name| name == texts(&complete(&many))[0]));
    let regex = json!({"prompt": "It was", "structured_outputs": {"regex": "[0-9]{3}"}});
    assert!(texts(&complete(&regex))[0].parse::<u32>().is_ok());
}

/// Stop tokens are ruled out beside the biases that a client may give.
#[test]
fn all_biases_of_a_client_fit_beside_ignore_eos() {
    let bias: serde_json::Map<String, Value> = (0..512).map(|id| (format!("{id}"), json!(0.5))).collect();
    // The vocabulary has 512 tokens; the same id may be written in several ways.
    let more = (0..512).map(|id| (format!("0{id}"), json!(0.5)));
    let bias: serde_json::Map<String, Value> = bias.into_iter().chain(more).collect();
    assert_eq!(bias.len(), 1024);
    let body = json!({"prompt": "a", "max_tokens": 4, "logit_bias": bias, "ignore_eos": true});
    assert_eq!(complete(&body)["usage"]["completion_tokens"], 4);
}

/// A constraint that fails after some tokens.
struct Faulty(u32);

impl Constraint for Faulty {
    fn mask(&mut self, _: &mut [bool]) -> Result<()> {
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| Error::new("on purpose"))?;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// A server whose replies to the prompts with these numbers, counted from its start, fail.
fn failing(numbers: &'static [usize]) -> Server {
    let count = AtomicUsize::new(0);
    let fail = move |_: &Model, _: &Prompt, request: Request| match numbers
        .contains(&count.fetch_add(1, Ordering::Relaxed))
    {
        true => request.constraint(Box::new(Faulty(3))),
        false => request,
    };
    let options = ServeOptions { request_hook: Some(RequestHook::new(fail)), ..options() };
    Server::start(options).expect("a server")
}

#[test]
fn a_reply_of_several_fails_alone() {
    let server = failing(&[1, 4]);
    let mut body = json!({"prompt": ["Once", "It was", "She"], "max_tokens": 20, "temperature": 0});
    let reply = post(server.address(), PATH, &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let reply: Value = serde_json::from_str(&reply.body).unwrap();
    let choices = reply["choices"].as_array().unwrap();
    let reasons: Vec<&Value> = choices.iter().map(|choice| &choice["finish_reason"]).collect();
    assert_eq!(reasons, ["length", "error", "length"]);
    assert_eq!(choices[1]["error"]["message"], "on purpose");
    assert!(choices[0].get("error").is_none() && choices[2].get("error").is_none());
    body["stream"] = json!(true);
    let events = post(server.address(), PATH, &body).events();
    for choice in choices {
        let pieces: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|piece| piece["index"] == choice["index"])
            .collect();
        let text: String = pieces.iter().filter_map(|piece| piece["text"].as_str()).collect();
        assert_eq!(choice["text"], text);
        let last = pieces.last().unwrap();
        assert_eq!((&last["finish_reason"], &last["error"]), (&choice["finish_reason"], &choice["error"]));
    }
    server.stop();
}

#[test]
fn a_request_fails_if_all_its_replies_do() {
    let server = failing(&[0, 1]);
    let body = json!({"prompt": ["Once", "It was"], "max_tokens": 20});
    let failed = post(server.address(), PATH, &body);
    assert_eq!(failed.status, 500, "{failed:?}");
    assert!(failed.body.contains("on purpose"), "{failed:?}");
    server.stop();
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let of = |body: Value| {
        let (status, code, param) = refusal(&post(shared(), PATH, &body));
        assert_eq!(status, 400);
        format!("{code} {param}")
    };
    assert_eq!(of(json!({"max_tokens": 4})), "missing_parameter prompt");
    assert_eq!(of(json!({"prompt": []})), "invalid_value prompt");
    assert_eq!(of(json!({"prompt": vec!["a"; 65]})), "invalid_value prompt");
    assert_eq!(of(json!({"prompt": "a", "suffix": "b", "echo": true})), "invalid_value suffix");
    assert_eq!(of(json!({"prompt": "a", "best_of": 2})), "unsupported_parameter best_of");
    assert_eq!(of(json!({"prompt": "a", "max_tokens": 0})), "invalid_value max_tokens");
    assert_eq!(of(json!({"prompt": [1, 99_999]})), "invalid_value ");
    assert_eq!(of(json!({"prompt": "a", "logit_bias": {"x": 1}})), "invalid_value logit_bias");
    assert_eq!(of(json!({"prompt": "a", "structured_outputs": {}})), "invalid_value structured_outputs");
    assert_eq!(of(json!({"prompt": "a", "structured_outputs": {"regex": "("}})), "invalid_value ");
    // A fault comes under the name that the request has.
    let text = "a".repeat((64 << 10) + 1);
    assert_eq!(of(json!({"prompt": "a", "grammar": text})), "invalid_value grammar");
    assert_eq!(of(json!({"prompt": "a", "guided_regex": text})), "invalid_value guided_regex");
    assert_eq!(of(json!({"prompt": "a", "guided_json": text})), "invalid_value guided_json");
    assert_eq!(of(json!({"prompt": "a", "guided_choice": []})), "invalid_value guided_choice");
    let two = json!({"prompt": "a", "grammar": "root ::= \"a\"", "guided_grammar": "root ::= \"b\""});
    assert_eq!(of(two), "invalid_value grammar");
    let two = json!({"prompt": "a", "structured_outputs": {"regex": "a"}, "guided_json": {}});
    assert_eq!(of(two), "invalid_value guided_json");
    let wrong = post(shared(), "/detokenize", &json!({"tokens": [99_999]}));
    assert_eq!(refusal(&wrong), (400, "invalid_value".to_owned(), "tokens".to_owned()));
    assert_eq!(refusal(&post(shared(), "/tokenize", &json!({}))).0, 400);
}

#[test]
fn a_reply_goes_on_where_the_model_would_end_it() {
    // Token 2 ends a text.
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 9, "logit_bias": {"2": 100}});
    let ended = complete(&body);
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(ended["usage"]["completion_tokens"], 0);
    body["ignore_eos"] = json!(true);
    let longer = complete(&body);
    assert_eq!(longer["choices"][0]["finish_reason"], "length");
    let plain = complete(&json!({"prompt": "Once upon a time", "max_tokens": 9}));
    assert_eq!(texts(&longer), texts(&plain));
}
