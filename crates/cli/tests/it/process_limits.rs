//! girih under limits of a file's size and of open files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::{Folder, name};
use crate::random_model::random_llama;
use crate::running_server::RunningServer;

/// Runs the binary under `ulimit -f`, in blocks of 512 bytes.
fn with_short_files(blocks: u32, home: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f $0; exec \"$@\"", &blocks.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_girih")).args(arguments);
    command.env_clear().env("HOME", home.path()).stdin(Stdio::null());
    command.output().expect("the system has a shell")
}

#[test]
fn a_file_that_may_not_be_so_long_is_an_error_or_a_note() {
    let (model, home) = (random_llama(512, 4), Folder::new());
    let run = ["run", model.name(), "Hi", "-n", "2", "--threads", "2", "--packed-cache", "on"];
    let ended = with_short_files(2000, &home, &run);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), None, "{stderr}");
    assert!(ended.status.success() && stderr.contains("not kept"), "{stderr}");
    let packed = home.file(".cache/girih/packed");
    assert_eq!(std::fs::read_dir(packed).expect("a folder").count(), 0, "no partial file is left");
    let out = home.file("out.gguf");
    let ended = with_short_files(100, &home, &["quantize", model.name(), name(&out), "--type", "q8_0"]);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{:?} {stderr}", ended.status);
    assert!(stderr.contains("out.gguf: cannot be written: File too large"), "{stderr}");
    assert!(!out.exists());
}

/// A program that runs girih after a command of the shell.
fn after(home: &Folder, shell: &str) -> std::path::PathBuf {
    let text = format!("#!/bin/sh\n{shell}\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_girih"));
    let program = home.write("limited", &text);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    program
}

#[test]
fn silent_connections_keep_nobody_out_of_a_server_with_few_open_files() {
    let home = Folder::new();
    let server = RunningServer::of(&after(&home, "ulimit -n 40"), &home, &["stories260k", "--no-sandbox"]);
    let _silent: Vec<_> = (0..60).map(|_| TcpStream::connect(&server.address).expect("it listens")).collect();
    let begun = Instant::now();
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    write!(stream, "GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address)
        .expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(begun.elapsed() < Duration::from_secs(4), "it took {:?}", begun.elapsed());
    let (code, notes) = server.end_by(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(notes.contains("at most 20 connections are served at once"), "{notes}");
}

#[test]
fn a_server_raises_its_limit_of_open_files() {
    let home = Folder::new();
    let server =
        RunningServer::of(&after(&home, "ulimit -S -n 100"), &home, &["stories260k", "--no-sandbox"]);
    let limits = server.limits();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("Linux has it");
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] != "100" && numbers[0] == numbers[1], "{files}");
    assert_eq!(server.end_by(Signal::TERM), (Some(0), String::new()));
}
