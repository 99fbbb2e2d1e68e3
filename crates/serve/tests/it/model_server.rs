//! A server on the built-in model, started for a test or shared by many.

use std::net::SocketAddr;
use std::sync::OnceLock;

use girih::{BUILT_IN, BUILT_IN_TEMPLATE, OpenOptions, RunOptions};
use girih_serve::{ServeOptions, ServedModel, Server};
use serde_json::{Value, json};

use crate::client::{Exchange, HttpReply};

/// The options of a server on the built-in model and a free port.
pub fn options() -> ServeOptions {
    let open_options =
        OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.to_owned()), ..OpenOptions::default() };
    let run_options = RunOptions { sequences: 4, output_rows: 16, ..RunOptions::default() };
    let (name, source) = (BUILT_IN.to_owned(), BUILT_IN.to_owned());
    ServeOptions {
        port: 0,
        ..ServeOptions::new(vec![ServedModel {
            name,
            source,
            open_options,
            run_options,
            is_loaded_on_request: false,
            unload_idle: None,
            version: None,
        }])
    }
}

/// A server that all tests share and that is never stopped.
pub fn shared() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(options()).unwrap()).address()
}

pub fn get(address: SocketAddr, path: &str) -> HttpReply {
    Exchange::begin(address, &format!("GET {path}"), &[], "").finish()
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> HttpReply {
    Exchange::begin(address, &format!("POST {path}"), &[], &body.to_string()).finish()
}

/// The code of the error and the parameter that it names.
pub fn refusal(reply: &HttpReply) -> (u16, String, String) {
    let error = &reply.json()["error"];
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty() && !text("type").is_empty(), "{reply:?}");
    (reply.status, text("code"), text("param"))
}

/// The body of a chat with a message that begins a story.
pub fn story(more: Value) -> Value {
    let mut body = json!({
        "model": "stories260k",
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 24,
    });
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}
