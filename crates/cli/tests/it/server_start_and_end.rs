//! `girih serve`: its start, a request, and its end.

use rustix::process::Signal;
use serde_json::json;

use crate::program::{Folder, fixture, girih, name};
use crate::running_server::RunningServer;

#[test]
fn a_server_answers_and_ends_with_0() {
    let home = Folder::new();
    for signal in [Signal::TERM, Signal::INT] {
        let server = RunningServer::start(&home, &["stories260k", "--context", "256"]);
        let message = json!({"role": "user", "content": "Once upon a time"});
        let reply = server.post("/v1/chat/completions", &json!({"messages": [message], "max_tokens": 30}));
        assert!(reply["choices"][0]["message"]["content"].to_string().contains("Lily"), "{reply}");
        assert_eq!(server.post("/tokenize", &json!({"prompt": "Lily"}))["max_model_len"], 256);
        assert_eq!(server.end_by(signal).0, Some(0));
    }
}

#[test]
fn the_next_server_finds_the_prompts_of_the_last_one() {
    let (home, model) = (Folder::new(), fixture("llama32_tied"));
    let prompts = format!("{}/prompts", home.name());
    let body = json!({"prompt": "one two three four five six seven eight nine ten", "max_tokens": 8});
    let replies: [_; 2] = std::array::from_fn(|_| {
        let arguments = [name(&model), "--context", "128", "--prompt-cache", &prompts];
        let server = RunningServer::start(&home, &arguments);
        let reply = server.post("/v1/completions", &body);
        assert_eq!(server.end(), Some(0));
        reply
    });
    let [first, second] = &replies;
    let cached =
        |reply: &serde_json::Value| reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(first), Some(0));
    assert!(cached(second) > Some(0), "{second}");
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    assert_eq!(first["model"], "llama32_tied");
}

#[test]
fn a_model_that_does_not_exist_is_named_at_the_start() {
    girih(&["serve", "stories260k", "./no-such-model.gguf"]).fails(2, "no-such-model.gguf");
    girih(&["serve", "stories260k", "stories260k"])
        .fails(2, "two models are named 'stories260k': remove one");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    girih(&["serve", "stories260k", "--port", &port]).fails(1, "; --port sets another one");
    girih(&["serve", "stories260k", "--memory", "1kB"]).fails(1, "raise it");
}

#[test]
fn a_server_on_all_addresses_says_which_names_it_answers_to() {
    let home = Folder::new();
    let notes = |arguments: &[&str]| {
        let arguments = [&["stories260k", "--no-sandbox"], arguments].concat();
        RunningServer::start(&home, &arguments).end_by(Signal::TERM).1
    };
    let all = ["--host", "0.0.0.0", "--i-know-it-is-open"];
    let said = notes(&all);
    assert!(
        said.contains("other names than localhost get status 421, addresses pass; give --allowed-host"),
        "{said}"
    );
    assert!(said.contains("warning: keys, prompts and replies cross the network unencrypted"), "{said}");
    let named = notes(&[&all[..], &["--allowed-host", "girih.example"]].concat());
    assert!(named.contains("unencrypted") && !named.contains("421"), "{named}");
    let keyed = notes(&["--api-key", "sk-secret"]);
    assert!(
        keyed.contains("other users of this machine can read --api-key") && !keyed.contains("sk-"),
        "{keyed}"
    );
    assert_eq!(notes(&[]), "");
}

#[test]
fn a_server_has_the_names_the_keys_and_the_template_of_its_options() {
    let home = Folder::new();
    home.write(
        "twice.jinja",
        "{% for message in messages %}{{ message.content ~ message.content }}{% endfor %}",
    );
    let template = home.file("twice.jinja");
    let named = ["story=stories260k", "--chat-template", name(&template), "--api-key", "bob:sk-1"];
    let server = RunningServer::start(&home, &named);
    assert_eq!(server.exchange("GET /v1/models", "", "").0, 401);
    let key = "Authorization: Bearer sk-1\r\n";
    let (_, models) = server.exchange("GET /v1/models", key, "");
    assert_eq!(models["data"][0]["id"], "story");
    let tokens = |body: &serde_json::Value| {
        server.exchange("POST /tokenize", key, &body.to_string()).1["tokens"].to_string()
    };
    let message = json!({"role": "user", "content": "Lily."});
    let rendered = tokens(&json!({"model": "story", "messages": [message]}));
    assert_eq!(rendered, tokens(&json!({"prompt": "Lily.Lily.", "add_special_tokens": false})));
    assert_eq!(server.end(), Some(0));
    let server = RunningServer::start(&home, &["stories260k", "--served-model-name", "gpt-4o"]);
    assert_eq!(server.exchange("GET /v1/models", "", "").1["data"][0]["id"], "gpt-4o");
    assert_eq!(server.end(), Some(0));
    for (options, words) in [
        (
            &["a=stories260k", "b=stories260k", "--chat-template", name(&template)][..],
            "--chat-template is for one model",
        ),
        (&["stories260k", "--chat-template", "chatml"], "there is no file 'chatml'"),
        (&["a=stories260k", "--served-name", "b"], "a model is named 'a' and, by --served-name, 'b'"),
        (&["stories260k", "--api-key", ""], "API key 1 of the options is no key"),
        (&["stories260k", "--allowed-origin", "*"], "name the origins, or give --api-keys"),
        (&["stories260k", "--allowed-origin", "http://a/b"], "give SCHEME://HOST[:PORT] without a path"),
    ] {
        girih(&["serve", "--port", "0"]).with(options).fails(2, words);
    }
    let help = girih(&["serve", "--help-all"]).env("GIRIH_API_KEY", "sk-secret").done().stdout;
    assert!(help.contains("--api-key <KEY>") && !help.contains("sk-secret"), "{help}");
}
