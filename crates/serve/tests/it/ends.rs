//! The end of a server, and of clients that leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::Exchange;
use crate::model_server::{get, options, post, refusal};
use crate::waiting::{running, slow_hook, slow_server};
use girih_serve::{ServeOptions, Server};
use serde_json::json;

/// The body of this number of streamed replies that are as long as the context.
fn endless(replies: u32) -> String {
    json!({
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "stream": true,
        "n": replies,
        "logit_bias": {"1": -100, "2": -100},
    })
    .to_string()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Options under which a model takes some time for a long reply.
fn slow_options() -> ServeOptions {
    let mut options = options();
    for model in &mut options.models {
        // The reference takes about a second.
        model.run_options.backend = girih::BackendChoice::parse(girih::backends(), "interpreter").unwrap();
    }
    options
}

#[test]
fn a_client_that_leaves_frees_its_places() {
    let server = Server::start(slow_options()).unwrap();
    let mut stream = Exchange::begin(server.address(), "POST /v1/chat/completions", &[], &endless(4));
    while !stream.line().contains("assistant") {}
    assert_eq!(server.state().live_replies("stories260k"), 4);
    drop(stream);
    wait_until("the reply is not cancelled", || server.state().live_generations() == 0);
    // A client that leaves before its whole reply is made.
    let whole = endless(4).replace("\"stream\":true", "\"stream\":false");
    let waiting = Exchange::begin(server.address(), "POST /v1/chat/completions", &[], &whole);
    wait_until("the request does not begin", || server.state().live_generations() == 1);
    drop(waiting);
    wait_until("the reply is not cancelled", || server.state().live_generations() == 0);
    server.stop();
}

#[test]
fn a_full_queue_is_refused_with_a_time_to_retry() {
    let mut options = slow_options();
    options.models[0].run_options.waiting = 0;
    let server = Server::start(options).unwrap();
    let mut stream = Exchange::begin(server.address(), "POST /v1/chat/completions", &[], &endless(4));
    while !stream.line().contains("assistant") {}
    let body = json!({"messages": [{"role": "user", "content": "Once"}]});
    let refused = post(server.address(), "/v1/chat/completions", &body);
    assert_eq!(refusal(&refused), (429, "rate_limit_exceeded".to_owned(), String::new()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Its grammar, which is not supported, is not compiled before.
    let schema = json!({"name": "a", "schema": {"type": "string", "nullabel": true}});
    let format = json!({"type": "json_schema", "json_schema": schema});
    let messages = json!([{"role": "user", "content": "Once"}]);
    let wrong = json!({"messages": messages, "response_format": format});
    let refused = post(server.address(), "/v1/chat/completions", &wrong);
    assert_eq!(refused.status, 429, "{refused:?}");
    drop(stream);
    // The model frees the place after its step.
    wait_until("the reply is not cancelled", || {
        post(server.address(), "/v1/chat/completions", &wrong).status != 429
    });
    let refused = post(server.address(), "/v1/chat/completions", &wrong);
    assert!(refused.status == 400 && refused.body.contains("nullabel"), "{refused:?}");
    server.stop();
}

/// The bug: a reply that was complete held its client's place as long as the client read slowly.
#[test]
fn a_complete_reply_that_is_not_read_is_dropped_and_frees_its_place() {
    let mut options = options();
    // Each token brings the name, and so the reply is more than the system's buffers hold.
    options.models[0].name = "m".repeat(256 << 10);
    let options = ServeOptions { unread_time: Duration::from_secs(3), ..options };
    let server = Server::start(options).unwrap();
    let ban = json!({"1": -100, "2": -100});
    let prompt = "Once upon a time";
    let body = json!({"prompt": prompt, "max_tokens": 400, "stream": true, "logit_bias": ban}).to_string();
    let unread = || server.state().models.loaded()[0].activity.unread;
    // On a busy machine, the server may take a complete reply as one piece, which is then read.
    let begin = || {
        let stream = Exchange::begin(server.address(), "POST /v1/completions", &[], &body);
        std::thread::sleep(Duration::from_millis(800));
        (unread() == 1 && server.state().live_generations() == 1).then_some(stream)
    };
    let stream = std::iter::repeat_with(begin).take(10).flatten().next().expect("an unread reply");
    wait_until("the place is not freed", || server.state().live_generations() == 0);
    assert_eq!(unread(), 0);
    let last = stream.finish().body;
    assert!(last.contains("reply_not_read") && !last.contains("[DONE]"), "{} bytes", last.len());
    server.stop();
}

#[test]
fn a_stopping_server_refuses_requests_and_cancels_replies_after_its_timeout() {
    let options = ServeOptions {
        drain_timeout: Duration::from_millis(500),
        request_hook: Some(slow_hook()),
        ..options()
    };
    let server = Server::start(options).unwrap();
    let address = server.address();
    let mut stream = Exchange::begin(address, "POST /v1/chat/completions", &[], &endless(1));
    while !stream.line().contains("assistant") {}
    let stopping = std::thread::spawn(move || server.stop());
    wait_until("the server does not drain", || get(address, "/ready").status == 503);
    assert_eq!(get(address, "/health").status, 200);
    assert_eq!(refusal(&get(address, "/v1/models")).0, 503);
    let mut lines = Vec::new();
    // The reply says why it failed, and then the stream does.
    while lines.last().is_none_or(|line: &String| line != "event: error") {
        lines.push(stream.line());
        assert!(lines.len() < 10_000, "{:?}", lines.last());
    }
    assert!(stream.line().contains("shutting down"), "{lines:?}");
    stopping.join().unwrap();
}

#[test]
fn a_reply_that_takes_seconds_is_complete_though_the_server_ends() {
    let server = slow_server();
    let mut stream = running(&server, 120);
    let begun = Instant::now();
    let stopping = std::thread::spawn(move || server.stop());
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line: &String| line != "data: [DONE]") {
        lines.push(stream.line());
        assert!(lines.len() < 10_000, "{:?}", lines.last());
    }
    assert!(begun.elapsed() > Duration::from_millis(1500), "the server ends while it replies");
    assert!(lines.iter().any(|line| line.contains("\"finish_reason\":\"length\"")), "{lines:?}");
    stopping.join().unwrap();
}

#[test]
fn a_whole_reply_is_complete_though_its_client_reads_late() {
    let mut options = options();
    // More than the system's buffers hold.
    let length = 12 << 20;
    options.models[0].name = "m".repeat(length);
    let server = Server::start(options).unwrap();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /v1/models HTTP/1.1\r\nhost: {}\r\n\r\n", server.address()).unwrap();
    let mut reply = vec![0; 1 << 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(server.state().drain.requests(), 1, "the reply is made, but not written");
    let stopping = std::thread::spawn(move || server.stop());
    // Longer than connections have when nothing runs any more.
    std::thread::sleep(Duration::from_millis(2500));
    stream.read_to_end(&mut reply).unwrap();
    let named = reply.iter().filter(|byte| **byte == b'm').count();
    assert!(named >= length, "{named} of {length}");
    stopping.join().unwrap();
}

#[test]
fn a_signal_ends_a_server_that_loads() {
    let program = std::env::current_exe().unwrap();
    let child = ["ends::ends_by_a_signal_while_it_loads", "--exact", "--ignored"];
    let ended = Command::new(program).args(child).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && text.contains("1 passed"), "{} {text}", ended.status);
}

#[test]
#[ignore = "sends a signal to its process; the test above runs it in a process of its own"]
fn ends_by_a_signal_while_it_loads() {
    let server = Server::listen(options()).unwrap();
    let address = server.address();
    let mut signals = server.catch_signals().unwrap();
    assert_eq!(get(address, "/ready").status, 503);
    let status = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
    assert!(status.unwrap().success());
    // The signal has arrived by then.
    std::thread::sleep(Duration::from_millis(100));
    assert!(server.load_until(&mut signals).unwrap().is_none());
    assert!(TcpStream::connect(address).is_err(), "the socket is closed");
    // Without a signal, it loads.
    let server = Server::listen(options()).unwrap();
    let mut signals = server.catch_signals().unwrap();
    let server = server.load_until(&mut signals).unwrap().unwrap();
    assert_eq!(get(server.address(), "/ready").status, 200);
    server.stop();
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let server = Server::start(options()).unwrap();
    let again = ServeOptions { port: server.address().port(), ..options() };
    let error = Server::start(again).err().unwrap();
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    server.stop();
}

#[test]
fn requests_are_served_while_a_server_says_that_it_leaves() {
    let server = Server::start(ServeOptions { drain_delay: Duration::from_secs(60), ..options() }).unwrap();
    let address = server.address();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 4});
    // Nobody waits for its end: the delay is longer than the requests need on any machine.
    std::thread::spawn(move || server.stop());
    wait_until("it does not say that it leaves", || get(address, "/ready").status == 503);
    assert_eq!(post(address, "/v1/completions", &body).status, 200);
}
