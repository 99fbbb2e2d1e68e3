//! What `girih quantize` leaves behind if it is interrupted, and what it overwrites.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Folder, name};
use crate::random_model::random_llama;

/// A running `girih quantize`.
fn quantize(model: &Folder, out: &Path, target: &str) -> Child {
    let arguments = ["quantize", model.name(), name(out), "--type", target, "--threads", "1", "--quiet"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
    command.args(arguments).env_clear().env("HOME", model.name());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the binary is there")
}

/// Waits until the process has created its file in `folder`, or has ended.
fn wait_for_file(child: &mut Child, folder: &Path) {
    let files = format!("/proc/{}/fd", child.id());
    let is_open = || {
        let entries = std::fs::read_dir(&files).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().read_link().ok()).any(|file| file.starts_with(folder))
    };
    while !is_open() && child.try_wait().expect("it is our child").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal some time after the file was created; returns how the process ended.
fn interrupted(mut child: Child, folder: &Path, after: Duration, signal: Signal) -> ExitStatus {
    wait_for_file(&mut child, folder);
    std::thread::sleep(after);
    let pid = Pid::from_raw(child.id() as i32).expect("no process has the id 0");
    // It may have ended, but it is not yet reaped.
    let _ = kill_process(pid, signal);
    child.wait().expect("it is our child")
}

/// Whether two files are equal.
fn same_bytes(one: &Path, other: &Path) -> bool {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    read(one) == read(other)
}

/// The names in a folder.
fn names(folder: &Folder) -> Vec<String> {
    let entries = folder.path().read_dir().expect("it exists");
    entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn an_interrupted_quantize_leaves_no_file() {
    let model = random_llama(512, 2);
    for (target, weights) in [("q8_0", "out"), ("q4nx", "out/model.safetensors")] {
        let whole = Folder::new();
        let mut child = quantize(&model, &whole.file("out"), target);
        wait_for_file(&mut child, whole.path());
        let start = Instant::now();
        assert!(child.wait().expect("it is our child").success(), "{target}");
        let (time, mut stopped) = (start.elapsed(), 0);
        for (number, signal) in
            [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL].into_iter().cycle().take(12).enumerate()
        {
            let folder = Folder::new();
            let child = quantize(&model, &folder.file("out"), target);
            let ended = interrupted(child, folder.path(), time * number as u32 / 12, signal);
            let what = format!("{target} {signal:?} after {number} twelfths of {time:?}");
            // It may be complete before the signal.
            if folder.file("out").exists() {
                assert!(same_bytes(&folder.file(weights), &whole.file(weights)), "{what}");
            } else {
                assert!(!ended.success(), "{what}");
                assert_eq!(names(&folder), [""; 0], "{what}");
                stopped += 1;
            }
        }
        assert!(stopped >= 5, "{target}: {stopped} of 12 were stopped in {time:?}");
    }
}

#[test]
fn a_file_that_appears_during_a_quantize_is_kept() {
    let model = random_llama(256, 2);
    let folder = Folder::new();
    let out = folder.file("out.gguf");
    let mut child = quantize(&model, &out, "q8_0");
    wait_for_file(&mut child, folder.path());
    std::fs::write(&out, "theirs").expect("the folder is writable");
    let ended = child.wait_with_output().expect("it is our child");
    let stderr = String::from_utf8(ended.stderr).expect("UTF-8");
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("has appeared while it was being written and was kept"), "{stderr}");
    assert_eq!(std::fs::read(&out).expect("it is there"), b"theirs");
    assert_eq!(names(&folder), ["out.gguf"]);
}
