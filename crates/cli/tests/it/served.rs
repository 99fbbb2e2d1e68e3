//! `girih serve` as a process: what the kernel forbids it, and that it serves nevertheless.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::program::{Folder, fixture};

/// A running `girih serve` and its address.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(home: &Folder, arguments: &[&str]) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
        command.args(["serve", "--port", "0", "--threads", "1"]).args(arguments);
        command.env_clear().env("HOME", home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let Some(address) = line.trim().strip_prefix("listening on http://") else {
            let mut errors = String::new();
            child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("text");
            panic!("{line:?} {errors}");
        };
        Served { address: address.to_owned(), child }
    }

    /// A reply to one message.
    fn chat(&self) -> Value {
        let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}).to_string();
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .expect("it reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        serde_json::from_str(response.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    }

    /// A line of the process's status.
    fn status(&self, key: &str) -> String {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.expect("it has this line").trim().to_owned()
    }

    /// The processes that it has started.
    fn children(&self) -> Vec<Pid> {
        let id = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).expect("Linux has it");
        let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
        let ids: Vec<String> = lists.flatten().collect();
        ids.join(" ").split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
    }

    /// Ends it by SIGTERM; returns its exit code.
    fn end(self) -> Option<i32> {
        self.end_with_notes().0
    }

    /// Ends it by SIGTERM; returns its exit code and what it wrote to standard error.
    fn end_with_notes(mut self) -> (Option<i32>, String) {
        let id = Pid::from_raw(self.child.id() as i32).expect("no process has the id 0");
        kill_process(id, Signal::TERM).expect("it runs");
        let code = self.child.wait().expect("it is our child").code();
        let mut notes = String::new();
        self.child.stderr.take().expect("it is piped").read_to_string(&mut notes).expect("text");
        (code, notes)
    }
}

#[test]
fn a_server_gives_up_what_it_does_not_need_and_serves() {
    let (home, model) = (Folder::new(), Folder::new());
    // A model in another folder, to which a link leads, with a chat template.
    let template = r#"{"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}"#;
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("llama32_tied").join(name), model.path().join(name)).expect("a copy");
    }
    std::fs::write(model.path().join("tokenizer_config.json"), template).expect("a file");
    let link = home.path().join("linked");
    std::os::unix::fs::symlink(model.path(), &link).expect("a link");
    let prompts = home.path().join("prompts");
    let (link, prompts) = (link.to_str().expect("UTF-8"), prompts.to_str().expect("UTF-8"));
    let server = Served::start(&home, &[link, "--prompt-cache", prompts]);
    assert_eq!(server.status("NoNewPrivs"), "1");
    assert_eq!(server.status("Seccomp"), "2");
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    // The worker of chat templates is started again when it has ended.
    let workers = server.children();
    assert!(!workers.is_empty(), "templates run in a process of their own");
    workers.iter().for_each(|worker| kill_process(*worker, Signal::KILL).expect("it runs"));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.chat()["usage"]["completion_tokens"], 4);
    assert_eq!(server.end(), Some(0));
    let saved = std::fs::read_dir(prompts).expect("a folder").count();
    assert!(saved > 0, "the prompt cache was written at the end");

    let free = Served::start(&home, &["stories260k", "--no-sandbox"]);
    assert_eq!((free.status("NoNewPrivs"), free.status("Seccomp")), ("0".to_owned(), "0".to_owned()));
    assert_eq!(free.end(), Some(0));
}

#[test]
fn a_server_on_all_addresses_says_which_names_it_answers_to() {
    let home = Folder::new();
    let notes = |arguments: &[&str]| {
        let arguments = [&["stories260k", "--no-sandbox"], arguments].concat();
        Served::start(&home, &arguments).end_with_notes().1
    };
    let all = ["--host", "0.0.0.0", "--i-know-it-is-open"];
    let said = notes(&all);
    assert!(said.contains("other names than localhost get status 421; give --allowed-host"), "{said}");
    assert!(said.contains("warning: keys, prompts and replies cross the network unencrypted"), "{said}");
    let named = notes(&[&all[..], &["--allowed-host", "girih.example"]].concat());
    assert!(named.contains("unencrypted") && !named.contains("421"), "{named}");
    assert_eq!(notes(&[]), "");
}
