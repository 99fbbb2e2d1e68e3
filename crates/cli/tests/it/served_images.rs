//! `girih serve` as a process, with images: it decodes them in its sandbox, and another process fetches them.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::test_kill_process;
use serde_json::{Value, json};

use crate::images::seeing_model;
use crate::program::{Folder, fixture};
use crate::running_server::RunningServer;

/// A chat about the image at this URL.
fn question(url: &str) -> Value {
    let parts = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Hi"}]);
    json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 2})
}

/// The message of a refusal.
fn refusal(server: &RunningServer, url: &str) -> String {
    let (status, reply) = server.exchange("POST /v1/chat/completions", "", &question(url).to_string());
    assert_eq!(status, 400, "{reply}");
    assert_eq!(reply["error"]["param"], "messages[0].content[0]");
    reply["error"]["message"].as_str().expect("a sentence").to_owned()
}

#[test]
fn images_are_decoded_in_the_sandbox() {
    let (home, model) = (Folder::new(), seeing_model());
    let server = RunningServer::start(&home, &[model.name()]);
    let file = std::fs::read(fixture("../images").join("rgb.png")).expect("a committed image");
    let url = format!("data:image/png;base64,{}", STANDARD.encode(file));
    let reply = server.post("/v1/chat/completions", &question(&url));
    assert_eq!(reply["usage"]["completion_tokens"], 2);
    // The thread that has decoded is one of them.
    let threads = server.threads();
    assert!(threads.len() > 2, "{threads:?}");
    for status in threads {
        assert!(status.contains("\nSeccomp:\t2\n") && status.contains("\nNoNewPrivs:\t1\n"), "{status}");
    }
    let sentence = refusal(&server, "https://example.org/a.png");
    assert!(
        sentence.contains("would have to be fetched") && sentence.contains("--fetch-images"),
        "{sentence}"
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_process_of_its_own_fetches_from_public_addresses_only() {
    let (home, model) = (Folder::new(), seeing_model());
    let server = RunningServer::start(&home, &[model.name(), "--fetch-images"]);
    assert_eq!(server.status("Seccomp"), "2");
    let [process] = server.children()[..] else { panic!("{:?}", server.children()) };
    let secrets = TcpListener::bind("127.0.0.1:0").expect("a free port");
    secrets.set_nonblocking(true).expect("a socket");
    let port = secrets.local_addr().expect("an address").port();
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "169.254.169.254"] {
        let sentence = refusal(&server, &format!("http://{host}:{port}/a.png"));
        assert!(sentence.contains("its host has no public address"), "{sentence}");
    }
    assert!(secrets.accept().is_err(), "nobody has connected");
    assert_eq!(server.end(), Some(0));
    let begun = Instant::now();
    while test_kill_process(process).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it ends with the server");
        std::thread::sleep(Duration::from_millis(20));
    }
}
