//! A running `girih serve`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::program::Folder;

/// A running `girih serve` and its address.
pub struct RunningServer {
    child: Child,
    pub address: String,
}

impl RunningServer {
    pub fn start(home: &Folder, arguments: &[&str]) -> RunningServer {
        RunningServer::of(Path::new(env!("CARGO_BIN_EXE_girih")), home, arguments)
    }

    /// As [`RunningServer::start`], of this copy of the program.
    pub fn of(program: &Path, home: &Folder, arguments: &[&str]) -> RunningServer {
        RunningServer::with_variables(program, home, &[], arguments)
    }

    /// As [`RunningServer::of`], with these variables.
    pub fn with_variables(
        program: &Path,
        home: &Folder,
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> RunningServer {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--threads", "1"]).args(arguments);
        command.env_clear().env("HOME", home.path()).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                // A test has just written the program, and a child of another test still holds the file.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    sleep(Duration::from_millis(5))
                }
                child => break child.expect("the binary is there"),
            }
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let Some(address) = line.trim().strip_prefix("listening on http://") else {
            let mut errors = String::new();
            child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("text");
            panic!("{line:?} {errors}");
        };
        RunningServer { address: address.to_owned(), child }
    }

    /// A reply to one message.
    pub fn chat(&self) -> Value {
        let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4});
        self.post("/v1/chat/completions", &body)
    }

    /// A reply with status 200.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.exchange(&format!("POST {path}"), "", &body.to_string());
        assert_eq!(status, 200, "{reply}");
        reply
    }

    /// The status and the JSON of the response to a request, such as `GET /v1/models`, with these further
    /// headers.
    pub fn exchange(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .expect("it reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(response.split_once("\r\n\r\n").expect("a body").1).expect("JSON"))
    }

    /// Sends a request with the version 1.0, which a body without a length answers, and leaves its answer to be read.
    pub fn asked(&self, request: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let (body, host) = (body.to_string(), &self.address);
        write!(
            stream,
            "{request} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        stream
    }

    /// The status and the lines of JSON of the response to a request.
    pub fn lines(&self, request: &str, body: &Value) -> (u16, Vec<Value>) {
        let mut response = String::new();
        self.asked(request, body).read_to_string(&mut response).expect("a response");
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = response.split_once("\r\n\r\n").expect("a body").1;
        (status, body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
    }

    /// A line of the process's status.
    pub fn status(&self, key: &str) -> String {
        status_of(&self.child.id().to_string(), key)
    }

    /// The status of each of its threads.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("Linux has it");
        tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).collect()
    }

    /// The limits of the process.
    pub fn limits(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).expect("Linux has it")
    }

    /// The processes that it has started.
    pub fn children(&self) -> Vec<Pid> {
        let id = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).expect("Linux has it");
        let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
        let ids: Vec<String> = lists.flatten().collect();
        ids.join(" ").split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
    }

    /// Kills the processes that it has started, and waits for their end.
    pub fn kill_children(&self) {
        let children = self.children();
        assert!(!children.is_empty(), "templates run in a process of their own");
        children.iter().for_each(|child| kill_process(*child, Signal::KILL).expect("it runs"));
        children.into_iter().for_each(wait_for_end);
    }

    /// Ends it by SIGTERM; returns its exit code.
    pub fn end(self) -> Option<i32> {
        self.end_by(Signal::TERM).0
    }

    /// Ends it by this signal; returns its exit code and what it wrote to standard error.
    pub fn end_by(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        let code = self.child.wait().expect("it is our child").code();
        let mut notes = String::new();
        self.child.stderr.take().expect("it is piped").read_to_string(&mut notes).expect("text");
        (code, notes)
    }
}

/// Waits until a process has ended and can be reaped, which is after the end of its last thread.
pub fn wait_for_end(process: Pid) {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let runs = || {
        let stat = std::fs::read_to_string(folder.join("stat"));
        let threads = std::fs::read_dir(folder.join("task")).map_or(0, Iterator::count);
        // It is gone if it was reaped.
        stat.is_ok_and(|stat| !stat.contains(") Z ") || threads > 1)
    };
    while runs() {
        std::thread::yield_now();
    }
}

/// A line of the status of a process: of an id, or of `self`.
pub fn status_of(process: &str, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.expect("it has this line").trim().to_owned()
}

impl Drop for RunningServer {
    /// Ends a server whose test has failed: it would run on, with the locks of the test's parents.
    fn drop(&mut self) {
        // It has ended if the test has passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
