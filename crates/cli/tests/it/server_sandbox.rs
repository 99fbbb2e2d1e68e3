//! `girih serve` as a process: what the kernel forbids it, and that it serves nevertheless.

use crate::program::{Folder, fixture};
use crate::running_server::{RunningServer, status_of};

/// Returns a folder with a model that has this chat template.
fn with_template(template: &str) -> Folder {
    let model = Folder::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("llama32_tied").join(name), model.path().join(name)).expect("a copy");
    }
    let config = serde_json::json!({ "chat_template": template });
    std::fs::write(model.path().join("tokenizer_config.json"), config.to_string()).expect("a file");
    model
}

#[test]
fn a_server_gives_up_what_it_does_not_need_and_serves() {
    let home = Folder::new();
    // A model in another folder, to which a link leads, with a chat template.
    let model = with_template("{% for message in messages %}{{ message.content }}{% endfor %}");
    let link = home.path().join("linked");
    std::os::unix::fs::symlink(model.path(), &link).expect("a link");
    let prompts = home.path().join("prompts");
    let (link, prompts) = (link.to_str().expect("UTF-8"), prompts.to_str().expect("UTF-8"));
    let server = RunningServer::start(&home, &[link, "--prompt-cache", prompts]);
    assert_eq!(server.status("NoNewPrivs"), "1");
    assert_eq!(server.status("Seccomp"), "2");
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    // The worker of chat templates is started again when it has ended.
    server.kill_children();
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    assert_eq!(server.end(), Some(0));
    let saved = std::fs::read_dir(prompts).expect("a folder").count();
    assert!(saved > 0, "the prompt cache was written at the end");

    let free = RunningServer::start(&home, &["stories260k", "--no-sandbox"]);
    // A container may confine this test, and so the server.
    for key in ["NoNewPrivs", "Seccomp"] {
        assert_eq!(free.status(key), status_of("self", key), "{key}");
    }
    assert_eq!(free.end(), Some(0));
}

#[test]
fn a_server_whose_program_is_replaced_starts_its_workers_again() {
    let (home, model) = (Folder::new(), with_template("{{ messages[0].content }}"));
    let program = home.path().join("girih");
    std::fs::copy(env!("CARGO_BIN_EXE_girih"), &program).expect("a copy");
    let server = RunningServer::of(&program, &home, &[model.path().to_str().expect("UTF-8")]);
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    // As a package manager does.
    std::fs::write(home.path().join("new"), "another version").expect("a file");
    std::fs::rename(home.path().join("new"), &program).expect("the folder is writable");
    server.kill_children();
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    assert_eq!(server.end(), Some(0));
}

#[test]
#[cfg(not(feature = "otlp"))]
fn a_program_without_traces_refuses_a_collector() {
    let call = crate::program::girih(&["serve", "stories260k", "--otlp", "http://127.0.0.1:4318"]);
    call.fails(2, "built without traces");
}

/// A collector of traces that answers each batch with 200; returns what it has read when `needed` is in it.
#[cfg(feature = "otlp")]
fn collect(socket: &std::net::TcpListener, needed: &str) -> Vec<u8> {
    use std::io::{Read, Write};
    use std::time::Duration;
    let mut all = Vec::new();
    while !all.windows(needed.len()).any(|part| part == needed.as_bytes()) {
        let (mut stream, _) = socket.accept().expect("the server connects");
        stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            all.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("it reads");
    }
    all
}

#[test]
#[cfg(feature = "otlp")]
fn a_confined_server_reaches_its_collector() {
    let home = Folder::new();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/otlp", socket.local_addr().expect("an address"));
    let server = RunningServer::start(&home, &["stories260k", "--otlp", &url]);
    assert_eq!(server.status("Seccomp"), "2");
    server.chat();
    let text = String::from_utf8_lossy(&collect(&socket, "gen_ai.request.model")).into_owned();
    assert!(text.starts_with("POST /otlp/v1/traces HTTP/1.1"), "{text}");
    assert_eq!(server.end(), Some(0));
}
