//! Models that are loaded on request and make room for each other, and how long they stay.

use std::thread;
use std::time::{Duration, Instant};

use girih::Model;
use girih_serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::model_server::{get, options, post};

/// A server of four models, each loaded on request, of which two fit into memory.
fn server() -> (Server, u64) {
    let mut options = options();
    let mut one = options.models.remove(0);
    one.is_loaded_on_request = true;
    let model = Model::open_with(&one.source, &one.open_options).unwrap();
    let bytes = model.plan(one.run_options.clone()).unwrap().memory().total();
    for name in ["a", "b", "c", "d"] {
        one.name = name.to_owned();
        options.models.push(one.clone());
    }
    let memory = bytes * 5 / 2;
    (Server::start(ServeOptions { memory, ..options }).unwrap(), memory)
}

fn body(model: &str, tokens: u32) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "max_tokens": tokens})
}

#[test]
fn switches_among_models_lose_no_request_beside_running_ones() {
    let (server, memory) = server();
    let address = server.address();
    assert!(server.state().models.loaded().is_empty(), "they are loaded on request");
    let text = |reply: &Value| reply["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    let expected = text(&post(address, "/v1/completions", &body("a", 16)).json());
    assert!(!expected.is_empty());
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client: usize| {
                let expected = &expected;
                scope.spawn(move || {
                    for turn in 0..10 {
                        let model = ["a", "b", "c", "d"][(client + turn * (client + 1)) % 4];
                        let reply = post(address, "/v1/completions", &body(model, 16));
                        assert_eq!(reply.status, 200, "{}", reply.body);
                        assert_eq!(&text(&reply.json()), expected);
                    }
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            let loaded = server.state().models.loaded();
            let bytes: u64 = loaded.iter().map(|model| model.bytes).sum();
            assert!(loaded.len() <= 2 && bytes <= memory, "{loaded:?}");
            thread::sleep(Duration::from_millis(5));
        }
    });
    server.stop();
}

#[test]
fn a_model_stays_loaded_for_the_time_that_a_request_asks_for() {
    let (server, _) = server();
    let address = server.address();
    let loaded = || {
        let models = server.state().models.loaded();
        models.into_iter().map(|model| model.name).collect::<Vec<_>>()
    };
    let until = |wanted: &[&str]| {
        let begun = Instant::now();
        while loaded() != wanted {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?} instead of {wanted:?}", loaded());
            thread::sleep(Duration::from_millis(20));
        }
    };
    let ask = |path: &str, more: Value| {
        let mut body = json!({"model": "a", "prompt": "Once", "max_tokens": 1});
        if path.starts_with("/api") {
            body = json!({"model": "a", "stream": false});
        }
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = post(address, path, &body);
        (reply.status, reply.json())
    };
    assert_eq!(ask("/v1/completions", json!({"keep_alive": "1h"})).0, 200);
    let expires = get(address, "/api/ps").json()["models"][0]["expires_at"].as_str().unwrap().to_owned();
    assert!(expires.starts_with("20"), "{expires}");
    until(&["a"]);
    // Without a prompt, it is unloaded at once.
    let (status, reply) = ask("/api/generate", json!({"keep_alive": 0}));
    assert_eq!((status, &reply["done_reason"]), (200, &json!("unload")));
    until(&[]);
    assert_eq!(ask("/api/generate", json!({})).1["done_reason"], "load");
    // The time of the last request holds: it was 0.
    until(&[]);
    assert_eq!(ask("/v1/completions", json!({"ttl": -1})).0, 200);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(loaded(), ["a"]);
    let message = json!({"messages": [{"role": "user", "content": "Once"}], "keep_alive": "100ms",
        "options": {"num_predict": 1}});
    assert_eq!(ask("/api/chat", message).1["done_reason"], "length");
    until(&[]);
    let (status, reply) = ask("/v1/completions", json!({"keep_alive": "soon"}));
    assert_eq!((status, &reply["error"]["param"]), (400, &json!("keep_alive")));
    server.stop();
}
