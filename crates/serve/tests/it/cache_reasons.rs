//! Why a prompt was not served from the prefix cache, in the response's header and at `/v1/girih/cache`.

use girih_serve::observe::AccessLog;
use girih_serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::{Exchange, HttpReply};
use crate::model_server::options;

const TEMPLATE: &str = "<s>{# <tool_call> #}{% for message in messages %}{{ message.content }}\
    {% if loop.first and tools %} {{ tools[0].function.name }} {{ tools[0].function.description }}{% endif %}\
    {% endfor %}";

fn server(logs_prompts: bool) -> Server {
    let mut options = options();
    options.models[0].open_options.chat_template = Some(TEMPLATE.to_owned());
    let log = AccessLog::new(std::io::sink(), logs_prompts);
    let keys = girih_serve::access::ApiKeys::of(None, &["one:first-key".into(), "two:second-key".into()]);
    Server::start(ServeOptions { api_keys: keys.unwrap(), access_log: Some(log), ..options }).unwrap()
}

fn ask(server: &Server, key: &str, messages: &Value, more: Value) -> HttpReply {
    let mut body = json!({"messages": messages, "max_tokens": 2});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let reply =
        Exchange::begin(server.address(), "POST /v1/chat/completions", &headers, &body.to_string()).finish();
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply
}

fn reports(server: &Server, key: &str) -> Value {
    let bearer = format!("Bearer {key}");
    Exchange::begin(server.address(), "GET /v1/girih/cache", &[("authorization", &bearer)], "")
        .finish()
        .json()["data"]
        .clone()
}

fn field(reply: &HttpReply, name: &str) -> String {
    let header = reply.header("x-girih-cache").unwrap_or_else(|| panic!("{reply:?}"));
    let value = header.split("; ").find_map(|field| field.strip_prefix(&format!("{name}=")));
    value.unwrap_or_default().trim_matches('"').to_owned()
}

fn conversation(system: &str, second: &str) -> Value {
    json!([{"role": "system", "content": system}, {"role": "user", "content": "Once upon a time there was"},
        {"role": "assistant", "content": "a cat"}, {"role": "user", "content": second}])
}

#[test]
fn a_miss_says_where_the_prompt_differs_from_the_nearest_one_of_its_tenant() {
    let server = server(true);
    let story = "Tell me a story about a little girl who likes to play with her dog in the park.";
    let first = ask(&server, "first-key", &conversation(story, "and a dog."), json!({}));
    assert_eq!((field(&first, "reason"), field(&first, "cached")), ("first".to_owned(), "0".to_owned()));
    let same = ask(&server, "first-key", &conversation(story, "and a dog."), json!({}));
    assert_eq!(field(&same, "reason"), "whole");
    let streamed = ask(&server, "first-key", &conversation(story, "and a bird."), json!({"stream": true}));
    assert_eq!(
        (field(&streamed, "reason"), field(&streamed, "part")),
        ("differs".into(), "message 3 user".into())
    );
    assert_eq!(field(&streamed, "position"), field(&streamed, "cached"));
    let system = story.replace("park", "house");
    let system = ask(&server, "first-key", &conversation(&system, "and a dog."), json!({}));
    assert_eq!((field(&system, "reason"), field(&system, "part")), ("differs".into(), "system".into()));
    let tool = |text: &str| json!({"tools": [{"type": "function", "function": {"name": "look", "description": text}}]});
    ask(&server, "first-key", &conversation(story, "and a dog."), tool("Looks at the sky."));
    let tools = ask(&server, "first-key", &conversation(story, "and a dog."), tool("Looks at the sun."));
    assert_eq!((field(&tools, "reason"), field(&tools, "part")), ("differs".into(), "tools".into()));
    // Another tenant's prompts are neither compared nor mentioned.
    let other = ask(&server, "second-key", &conversation(story, "and a dog."), json!({}));
    assert_eq!((field(&other, "reason"), field(&other, "cached")), ("first".into(), "0".into()));
    let own = reports(&server, "first-key");
    assert_eq!(own.as_array().unwrap().len(), 6);
    assert_eq!((&own[0]["part"], &own[0]["reason"]), (&json!("tools"), &json!("differs")));
    assert!(own[0]["text"].as_str().unwrap().starts_with("un"), "{}", own[0]);
    assert_eq!(reports(&server, "second-key").as_array().unwrap().len(), 1);
    server.stop();
}

#[test]
fn texts_of_prompts_are_told_only_if_they_are_logged() {
    let server = server(false);
    ask(&server, "first-key", &conversation("Be kind.", "and a dog."), json!({}));
    ask(&server, "first-key", &conversation("Be kind.", "and a bird."), json!({}));
    let own = reports(&server, "first-key");
    assert_eq!((&own[0]["reason"], &own[0]["text"]), (&json!("differs"), &Value::Null));
    assert_eq!(reports(&server, "second-key"), json!([]));
    server.stop();
}

#[test]
fn a_prompt_that_was_evicted_says_so() {
    let mut options = options();
    // Room for one long conversation at a time.
    options.models[0].run_options.sequences = 1;
    let server = Server::start(options).unwrap();
    let prompt = |name: &str| {
        let text = format!("{name} likes to play with a ball in the park. ").repeat(16);
        let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1});
        crate::model_server::post(server.address(), "/v1/chat/completions", &body)
    };
    let first = prompt("Lily");
    assert_eq!(field(&first, "reason"), "first");
    for name in ["Tom", "Ben", "Sue", "Max", "Anna"] {
        assert_ne!(field(&prompt(name), "reason"), "whole");
    }
    let again = prompt("Lily");
    assert_eq!(field(&again, "reason"), "evicted", "{:?}", again.header("x-girih-cache"));
    server.stop();
}
