//! `/v1/completions/render` and `/v1/chat/completions/render`.

use girih::{BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions};
use girih_serve::Server;
use serde_json::{Value, json};

use crate::model_server::{options, post, refusal, shared, story};

const COMPLETION: &str = "/v1/completions/render";
const CHAT: &str = "/v1/chat/completions/render";

#[test]
fn a_completion_is_rendered_as_the_model_reads_it() {
    let ids = post(shared(), "/tokenize", &json!({"prompt": "Once upon a time"})).json()["tokens"].clone();
    let body = json!({"model": "stories260k", "prompt": ["Once upon a time", "Lily"], "max_tokens": 20});
    let reply = post(shared(), COMPLETION, &body).json();
    let list = reply.as_array().unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!((&list[0]["token_ids"], &list[0]["features"]), (&ids, &Value::Null));
    assert_eq!(list[0]["sampling_params"], json!({"max_tokens": 20}));
    assert!(list[0]["request_id"].as_str().unwrap().starts_with("cmpl-"));
    let tokens = post(shared(), COMPLETION, &json!({"prompt": [1, 403, 407]})).json();
    assert_eq!(tokens[0]["token_ids"], json!([1, 403, 407]));
    // As of the reply that it stands for.
    let cut =
        post(shared(), COMPLETION, &json!({"prompt": [1, 2, 403, 407], "truncate_prompt_tokens": 2})).json();
    assert_eq!(cut[0]["token_ids"], json!([403, 407]));
}

#[test]
fn a_chat_is_rendered_with_its_template_and_what_changes_it() {
    let open_options =
        OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.to_owned()), ..OpenOptions::default() };
    let model = Model::open_with("stories260k", &open_options).unwrap();
    let session = model.start().unwrap();
    let rendered = session.render(girih::Request::new(Conversation::new().user("Once upon a time"))).unwrap();
    let reply = post(shared(), CHAT, &story(json!({"stream": true}))).json();
    assert_eq!(reply["token_ids"], json!(rendered.tokens));
    assert_eq!(reply["sampling_params"], json!({"max_tokens": 24}));
    assert!(reply["request_id"].as_str().unwrap().starts_with("chatcmpl-"));
    let begun = json!([{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}]);
    let body = json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false});
    let tokens = post(shared(), "/tokenize", &body).json()["tokens"].clone();
    assert_eq!(post(shared(), CHAT, &body).json()["token_ids"], tokens);
}

#[test]
fn what_the_routes_of_replies_refuse_is_refused_alike() {
    let wrong = [
        ("/v1/completions", json!({"prompt": "Once", "temprature": 1})),
        ("/v1/completions", json!({"prompt": [99_999]})),
        ("/v1/completions", json!({"prompt": "Once", "model": "tom"})),
        ("/v1/completions", json!({"prompt": "Once ".repeat(600)})),
        ("/v1/completions", json!({"prompt": "Once", "temperature": -1})),
        (
            "/v1/chat/completions",
            story(json!({"response_format": {"type": "json_schema", "json_schema": {}}})),
        ),
        ("/v1/chat/completions", story(json!({"n": 9}))),
    ];
    for (path, body) in wrong {
        let expected = refusal(&post(shared(), path, &body));
        assert!(expected.0 >= 400, "{path}");
        assert_eq!(refusal(&post(shared(), &format!("{path}/render"), &body)), expected, "{body}");
    }
}

#[test]
fn a_full_queue_does_not_refuse_it() {
    let mut options = options();
    options.models[0].run_options.sequences = 1;
    options.models[0].run_options.waiting = 0;
    let server = Server::start(options).unwrap();
    let two = json!({"prompt": ["Once", "Lily"]});
    assert_eq!(post(server.address(), "/v1/completions", &two).status, 400, "there is one place");
    assert_eq!(post(server.address(), COMPLETION, &two).json().as_array().unwrap().len(), 2);
    server.stop();
}
