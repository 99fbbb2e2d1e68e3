//! Parameters that other servers have: what is accepted without effect, and what that tells a client.

use std::sync::Mutex;

use girih_serve::api::{anthropic, ollama, openai};
use girih_serve::parameters::{AcceptedValues, ParameterWithoutEffect, UnknownParameters};
use girih_serve::{ServeOptions, Server};
use serde_json::{Map, Value, json};

use crate::model_server::{get, options, post, refusal, shared};
use crate::raw_client::exchange;

const HEADER: &str = "x-girih-without-effect";

/// A request of each API that has parameters without effect, and where they stand in it.
fn requests() -> [(&'static str, Value, &'static str, &'static [ParameterWithoutEffect]); 6] {
    let user = json!([{"role": "user", "content": "Once"}]);
    let chat = json!({"messages": user, "max_tokens": 1});
    let message = json!({"model": "stories260k", "messages": user, "max_tokens": 1});
    let ollama = json!({"model": "stories260k", "messages": user, "options": {"num_predict": 1}});
    [
        ("/v1/chat/completions", chat, "", openai::parameters::WITHOUT_EFFECT),
        (
            "/v1/completions",
            json!({"prompt": "Once", "max_tokens": 1}),
            "",
            openai::parameters::WITHOUT_EFFECT,
        ),
        (
            "/v1/responses",
            json!({"input": "Once", "max_output_tokens": 1}),
            "",
            openai::responses::request::WITHOUT_EFFECT,
        ),
        ("/v1/messages", message, "", anthropic::request::WITHOUT_EFFECT),
        ("/api/chat", ollama.clone(), "", ollama::options::WITHOUT_EFFECT),
        ("/api/chat", ollama, "options", ollama::options::OPTIONS_WITHOUT_EFFECT),
    ]
}

/// A request with more parameters: its own ones or those of an object in it.
fn with(request: &Value, place: &str, more: &Map<String, Value>) -> Value {
    let mut request = request.clone();
    let object = if place.is_empty() { &mut request } else { &mut request[place] };
    more.iter().for_each(|(name, value)| object[name] = value.clone());
    request
}

/// The parameters of a table with values that are accepted, and those among them that are named.
fn accepted(place: &str, table: &[ParameterWithoutEffect]) -> (Map<String, Value>, String) {
    let (mut values, mut named) = (Map::new(), Vec::new());
    for parameter in table {
        let value = match (parameter.name, parameter.values) {
            (name, AcceptedValues::Any) => {
                named.push(if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") });
                json!(1)
            }
            (_, AcceptedValues::Only(values)) => serde_json::from_str(values[0]).unwrap(),
            ("samplers", _) => json!([
                "penalties",
                "dry",
                "top_n_sigma",
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "typ_p",
                "xtc"
            ]),
            ("context_management", _) => {
                json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
            }
            (name, AcceptedValues::Where(_)) => panic!("{name} has no value to try"),
        };
        values.insert(parameter.name.to_owned(), value);
    }
    (values, named.join(", "))
}

#[test]
fn what_has_no_effect_changes_nothing_and_is_named() {
    for (path, request, place, table) in requests() {
        let plain = post(shared(), path, &request);
        assert_eq!((plain.status, plain.header(HEADER)), (200, None), "{path}: {}", plain.body);
        let (values, named) = accepted(place, table);
        let reply = post(shared(), path, &with(&request, place, &values));
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert_eq!(reply.header(HEADER), Some(&*named), "{path}");
    }
    let (path, request, place, table) = requests().into_iter().next().unwrap();
    let (values, named) = accepted(place, table);
    let mut streamed = with(&request, place, &values);
    streamed["stream"] = json!(true);
    assert_eq!(post(shared(), path, &streamed).header(HEADER), Some(&*named));
    let texts = |body: &Value| post(shared(), path, body).json()["choices"][0]["message"].clone();
    assert_eq!(texts(&with(&request, place, &values)), texts(&request));
}

#[test]
fn values_that_would_change_the_reply_are_refused() {
    for (path, request, place, table) in requests() {
        for parameter in table.iter().filter(|one| !matches!(one.values, AcceptedValues::Any)) {
            let more = Map::from_iter([(parameter.name.to_owned(), json!({"edits": [{"type": "other"}]}))]);
            let reply = post(shared(), path, &with(&request, place, &more));
            assert_eq!(reply.status, 400, "{path} {}: {}", parameter.name, reply.body);
            assert!(reply.body.contains(parameter.name), "{}", reply.body);
        }
    }
}

#[test]
fn a_misspelled_name_is_told_the_right_one() {
    let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_token": 1, "temprature": 0});
    let reply = post(shared(), "/v1/chat/completions", &body);
    assert_eq!(refusal(&reply), (400, "unknown_parameter".to_owned(), "max_token".to_owned()));
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the parameter \"max_token\" is not known; did you mean max_tokens?");
    let body = json!({"model": "stories260k", "prompt": "a", "options": {"num_predic": 1}});
    let reply = post(shared(), "/api/generate", &body).json();
    assert_eq!(
        reply["error"],
        "the parameter \"options.num_predic\" is not known; did you mean num_predict?"
    );
}

#[test]
fn sentences_about_types_are_in_words_of_json() {
    let of = |more: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1});
        let body = with(&body, "", more.as_object().unwrap());
        let reply = post(shared(), "/v1/chat/completions", &body);
        let error = reply.json()["error"].clone();
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(error["param"].is_string() && error["code"].is_string(), "{error}");
        error["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(of(json!({"temperature": "hot"})), "temperature must be a number, not the string \"hot\"");
    assert_eq!(of(json!({"n": 1.5})), "n must be an integer from 0 to 4294967295, not 1.5");
    assert_eq!(of(json!({"stop": 1})), "stop must be a string or an array of strings");
    assert_eq!(
        of(json!({"messages": [{"role": "foo", "content": "a"}]})),
        "messages: \"foo\" is not known; known are system, developer, user, assistant, tool, function"
    );
}

#[test]
fn unknown_parameters_are_named_if_the_server_allows_them() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let options = ServeOptions {
        unknown_parameters: UnknownParameters::Warn,
        notice: |sentence| NOTICES.lock().unwrap().push(sentence.to_owned()),
        ..options()
    };
    let server = Server::start(options).unwrap();
    let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1, "unheard_of": 1, "user": "a"});
    for _ in 0..2 {
        let reply = post(server.address(), "/v1/chat/completions", &body);
        assert_eq!((reply.status, reply.header(HEADER)), (200, Some("user, unheard_of")), "{}", reply.body);
    }
    let body =
        json!({"model": "stories260k", "prompt": "a", "options": {"num_predict": 1, "unheard_of": {}}});
    let reply = post(server.address(), "/api/generate", &body);
    assert_eq!((reply.status, reply.header(HEADER)), (200, Some("options.unheard_of")), "{}", reply.body);
    // What is known but wrong is still refused.
    let wrong = json!({"messages": [{"role": "user", "content": "Once"}], "unheard_of": 1, "n": "two"});
    assert_eq!(refusal(&post(server.address(), "/v1/chat/completions", &wrong)).2, "n");
    server.stop();
    let notices = NOTICES.lock().unwrap();
    let expected = [
        "the parameter user has no effect: requests are told apart by their API keys; this is said once",
        "the parameter unheard_of has no effect: girih does not know it; this is said once",
        "the parameter options.unheard_of has no effect: girih does not know it; this is said once",
    ];
    assert_eq!(notices[..], expected);
}

/// The reply to a text of 24 tokens, and its reason to end.
fn completed(more: Value) -> (String, String) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 24});
    let reply = post(shared(), "/v1/completions", &with(&body, "", more.as_object().unwrap()));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let choice = &reply.json()["choices"][0];
    (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
}

#[test]
fn parameters_of_other_servers_are_honoured() {
    let (plain, _) = completed(json!({}));
    assert!(plain.starts_with(", there was a little girl named Lily."), "{plain}");
    // The names of llama.cpp and vLLM.
    let body = json!({"prompt": "Once upon a time", "n_predict": 24});
    assert_eq!(post(shared(), "/v1/completions", &body).json()["choices"][0]["text"], plain);
    assert_eq!(completed(json!({"max_tokens": 24.0})).0, plain);
    assert!(completed(json!({"max_tokens": -1})).0.len() > plain.len());
    let penalty = json!({"repetition_penalty": 9.0});
    let penalized = completed(penalty.clone()).0;
    assert_ne!(penalized, plain);
    assert_eq!(completed(json!({"repeat_penalty": 9.0})).0, penalized);
    assert_eq!(completed(json!({"repeat_penalty": 9.0, "repeat_last_n": -1})).0, penalized);
    assert_eq!(completed(json!({"repeat_penalty": 9.0, "repeat_last_n": 0})).0, plain);
    assert_eq!(completed(json!({"mirostat": 0, "mirostat_tau": 3.0})).0, plain);
    // Stops.
    let stopped = completed(json!({"stop": "Lily"}));
    assert_eq!(stopped, (plain.split("Lily").next().unwrap().to_owned(), "stop".to_owned()));
    let included = completed(json!({"stop": "Lily", "include_stop_str_in_output": true}));
    assert_eq!(included, (stopped.0 + "Lily", "stop".to_owned()));
    assert_eq!(completed(json!({"stop": "Lily", "min_tokens": 24})).0, plain);
    let session = girih::Model::open("stories260k").unwrap().start().unwrap();
    let ids =
        session.generate(girih::Request::new("Once upon a time").max_tokens(24)).unwrap().tokens().unwrap();
    let stop = ids[6];
    let (text, reason) = completed(json!({"stop_token_ids": [stop]}));
    assert!(plain.starts_with(&text) && text.len() < plain.len() && reason == "stop", "{text}");
    assert_eq!(completed(json!({"stop_token_ids": [stop], "min_tokens": 24})).1, "length");
    // The end of the prompt.
    let tokens = session.model().tokenize("Once upon a time").unwrap();
    let end = json!({"prompt": tokens[tokens.len() - 2..], "max_tokens": 24});
    let expected = post(shared(), "/v1/completions", &end).json()["choices"][0]["text"].clone();
    assert_eq!(completed(json!({"truncate_prompt_tokens": 2})).0, expected);
    assert_eq!(completed(json!({"priority": 3, "best_of": 1})).0, plain);
}

#[test]
fn a_stop_ends_a_constrained_reply_only_where_it_is_complete() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "additionalProperties": false});
    let guided = json!({"guided_json": schema, "stop": ["age", "}", "4", "3"], "max_tokens": 100});
    let (text, reason) = completed(guided);
    assert!(["3", "4"].iter().any(|age| text.contains(age)), "{text}");
    serde_json::from_str::<Value>(&text).unwrap();
    assert_eq!(reason, "stop");
    // After Tom the reply is complete, and Lily may follow.
    let (text, _) = completed(json!({"guided_regex": "Tom( Lily)*", "stop": ["om", " Lily"]}));
    assert_eq!(text, "Tom");
    let (text, _) = completed(json!({"guided_choice": ["yes", "no"], "stop": ["e", "o"]}));
    assert!(["yes", "no"].contains(&&*text), "{text}");
    let body = json!({"prompt": "a", "guided_regex": "a+", "min_tokens": 2});
    assert_eq!(refusal(&post(shared(), "/v1/completions", &body)).2, "min_tokens");
}

#[test]
fn schemas_of_clients_are_closed_and_have_annotations() {
    let schema = json!({"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"],
        "discriminator": {"propertyName": "age"}, "nullable": true});
    let user = json!([{"role": "user", "content": "Once"}]);
    let ollama = json!({"model": "stories260k", "messages": user, "format": schema, "stream": false,
        "options": {"num_predict": 60}});
    let reply = post(shared(), "/api/chat", &ollama).json();
    let strict =
        json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}});
    let chat = json!({"messages": user, "response_format": strict, "max_tokens": 60});
    let chat = post(shared(), "/v1/chat/completions", &chat).json();
    assert_eq!(chat["choices"][0]["finish_reason"], "stop", "{chat}");
    for text in [&reply["message"]["content"], &chat["choices"][0]["message"]["content"]] {
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 1, "{value}");
    }
    let unique = json!({"prompt": "a", "guided_json": {"type": "array", "uniqueItems": true}});
    assert_eq!(refusal(&post(shared(), "/v1/completions", &unique)).0, 400);
}

#[test]
fn a_model_that_cannot_think_answers_without() {
    let of = |more: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2});
        let reply = post(shared(), "/v1/chat/completions", &with(&body, "", more.as_object().unwrap()));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.header(HEADER).map(str::to_owned)
    };
    assert_eq!(of(json!({"reasoning_effort": "low"})).as_deref(), Some("reasoning_effort"));
    assert_eq!(of(json!({"enable_thinking": true})).as_deref(), Some("enable_thinking"));
    assert_eq!(of(json!({"enable_thinking": false})), None);
    assert_eq!(of(json!({"thinking": {"type": "disabled"}, "think": false})), None);
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 9}});
    assert_eq!(of(thinking).as_deref(), Some("thinking, thinking.budget_tokens"));
    let reasoning = json!({"reasoning": {"effort": "high", "max_tokens": 9}, "verbosity": "low"});
    assert_eq!(of(reasoning).as_deref(), Some("verbosity, reasoning.effort, reasoning.max_tokens"));
    let responses = json!({"input": "Once", "max_output_tokens": 1, "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"}});
    let reply = post(shared(), "/v1/responses", &responses);
    assert_eq!((reply.status, reply.header(HEADER)), (200, Some("verbosity, reasoning.effort")));
}

#[test]
fn ollamas_routes_need_no_content_type() {
    let body =
        r#"{"model": "stories260k", "prompt": "Once", "stream": false, "options": {"num_predict": 1}}"#;
    let send = |path: &str, more: &str| {
        let address = shared();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}");
        exchange(address, &format!("{head}Content-Length: {length}\r\n\r\n{body}")).status
    };
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let page = "Sec-Fetch-Site: same-origin\r\n";
    assert_eq!((send("/api/generate", ""), send("/api/generate", form)), (200, 200));
    assert_eq!((send("/v1/completions", ""), send("/v1/completions", form)), (415, 415));
    assert!(
        send("/api/generate", page) >= 400 && send("/api/generate", "Content-Type: text/plain\r\n") == 415
    );
}

#[test]
fn the_documentation_lists_what_has_no_effect() {
    let page = include_str!("../../../../docs/server.md");
    let (_, section) = page.split_once("## What has no effect").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let rows: Vec<(&str, &str)> = rows.map(|row| row.split_once("` | ").unwrap()).collect();
    let tables = [
        openai::parameters::WITHOUT_EFFECT,
        openai::responses::request::WITHOUT_EFFECT,
        anthropic::request::WITHOUT_EFFECT,
        ollama::options::WITHOUT_EFFECT,
        ollama::options::OPTIONS_WITHOUT_EFFECT,
    ];
    let row = |parameter: &ParameterWithoutEffect| {
        let only = match parameter.values {
            AcceptedValues::Only(values) => format!("only {}: ", values.join(" or ")),
            _ => String::new(),
        };
        (parameter.name, only + parameter.why)
    };
    let expected: Vec<(&str, String)> = tables.into_iter().flatten().map(row).collect();
    let expected: Vec<(&str, &str)> = expected.iter().map(|(name, why)| (*name, &**why)).collect();
    assert_eq!(rows, expected);
}

#[test]
fn the_tests_that_the_page_of_complaints_names_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/complaints.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ") && line.contains("::")).collect();
    assert!(rows.len() >= 20, "{}", rows.len());
    for row in rows {
        for test in row.split('`').filter(|text| text.starts_with("crates/") && text.contains("::")) {
            let (file, name) = test.split_once("::").unwrap();
            let source =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "{test}");
        }
    }
}

#[test]
fn what_the_documentation_says_is_refused_is_refused_by_name() {
    let page = include_str!("../../../../docs/server.md");
    let (_, section) = page.split_once("## What is refused").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let names: Vec<&str> =
        rows.flat_map(|(names, _)| names.split(", ")).map(|name| name.trim_matches('`')).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let mut body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1});
        body[name] = json!(1);
        let reply = post(shared(), "/v1/chat/completions", &body);
        assert_eq!(refusal(&reply), (400, "unknown_parameter".to_owned(), name.to_owned()));
    }
}

#[test]
fn the_description_has_a_sentence_for_each_response_and_each_parameter() {
    let document = get(shared(), "/openapi.json").json();
    let mut ids = std::collections::BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let description = response["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{path} {status}");
            }
        }
    }
    let properties = &document["components"]["schemas"]["OllamaOptions"]["properties"];
    assert_eq!(
        properties["num_gpu"],
        json!({"description": "Without effect: it is decided when the server starts."})
    );
}
