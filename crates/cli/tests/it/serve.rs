//! `girih serve`: its start, a request, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Folder, fixture, girih, name};

/// A running server and its address.
fn serve(home: &Folder, arguments: &[&str]) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
    command.args(["serve", "--port", "0"]).args(arguments);
    command.env_clear().env("HOME", home.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary is there");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it is text");
    let address = line.trim_end().strip_prefix("listening on http://");
    let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
    (child, address)
}

fn exchange(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let length = body.len();
    let headers = format!(
        "host: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}"
    );
    stream.write_all(format!("{head} HTTP/1.1\r\n{headers}\r\n\r\n{body}").as_bytes()).expect("it reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the reply is text");
    reply
}

#[test]
fn a_server_answers_and_ends_with_0() {
    let home = Folder::new();
    for signal in [Signal::TERM, Signal::INT] {
        let (child, address) = serve(&home, &["stories260k", "--context", "256"]);
        let body = r#"{"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 30}"#;
        let reply = exchange(&address, "POST /v1/chat/completions", body);
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("Lily"), "{reply}");
        let tokenized = exchange(&address, "POST /tokenize", r#"{"prompt": "Lily"}"#);
        assert!(tokenized.contains("\"max_model_len\":256"), "{tokenized}");
        end(child, signal);
    }
}

/// Ends a server, whose exit code must be 0.
fn end(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).expect("it is our child");
    assert_eq!(child.wait().expect("it is our child").code(), Some(0));
}

#[test]
fn the_next_server_finds_the_prompts_of_the_last_one() {
    let (home, model) = (Folder::new(), fixture("llama32_tied"));
    let prompts = format!("{}/prompts", home.name());
    let body = r#"{"prompt": "one two three four five six seven eight nine ten", "max_tokens": 8}"#;
    let mut replies = Vec::new();
    for _ in 0..2 {
        let arguments = [name(&model), "--context", "128", "--prompt-cache", &prompts];
        let (child, address) = serve(&home, &arguments);
        replies.push(exchange(&address, "POST /v1/completions", body));
        end(child, Signal::TERM);
    }
    let field = |reply: &str, key: &str| {
        let (_, rest) = reply.split_once(key).unwrap_or_else(|| panic!("{reply}"));
        rest.split([',', '}']).next().unwrap_or_default().to_owned()
    };
    let [first, second] = &replies[..] else { panic!("two servers ran") };
    assert_eq!(field(first, "\"cached_tokens\":"), "0");
    assert_ne!(field(second, "\"cached_tokens\":"), "0");
    assert_eq!(field(first, "\"text\":"), field(second, "\"text\":"));
    assert_eq!(field(first, "\"model\":"), "\"llama32_tied\"");
}

#[test]
fn a_model_that_does_not_exist_is_named_at_the_start() {
    girih(&["serve", "stories260k", "./no-such-model.gguf"]).fails(2, "no-such-model.gguf");
    girih(&["serve", "stories260k", "stories260k"]).fails(2, "already has a model");
    girih(&["serve", "stories260k", "--memory", "1kB"]).fails(1, "raise it");
}
