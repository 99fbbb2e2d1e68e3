//! What `girih quantize` leaves behind if it is interrupted, and what it overwrites.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

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
        let mut links = entries.filter_map(|entry| entry.path().read_link().ok());
        links.any(|file| file.starts_with(folder) && file != folder)
    };
    while !is_open() && child.try_wait().expect("it is our child").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether this process and its children ignore a signal, as the background jobs of a shell ignore
/// SIGINT, and those of `nohup` SIGHUP.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it has this line");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Sends a signal to a child, which may have ended.
fn send(child: &Child, signal: Signal) {
    // It is not yet reaped.
    let _ = kill_process(id(child), signal);
}

fn id(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("no process has the id 0")
}

/// Stops a child. Returns whether it was still running.
fn stop(child: &Child) -> bool {
    send(child, Signal::STOP);
    let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let state = waitid(WaitId::Pid(id(child)), states).expect("it is our child");
    state.expect("this waits for a state").stopped()
}

/// Starts `girih quantize` and stops it between creating its file and naming it `out` in the
/// folder.
fn stopped_quantize(model: &Folder, out: &str, target: &str) -> (Folder, Child) {
    for _ in 0..100 {
        let folder = Folder::new();
        let mut child = quantize(model, &folder.file(out), target);
        wait_for_file(&mut child, folder.path());
        if child.try_wait().expect("it is our child").is_none() && stop(&child) && !folder.file(out).exists()
        {
            return (folder, child);
        }
        // It was complete before it was stopped.
        send(&child, Signal::KILL);
        child.wait().expect("it is our child");
    }
    panic!("{target}: each of 100 was complete before it was stopped");
}

/// Whether two files are equal.
fn same_bytes(one: &Path, other: &Path) -> bool {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    read(one) == read(other)
}

/// Whether the file system of a folder has files without names, which vanish with their process.
fn has_unnamed_files(folder: &Folder) -> bool {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(folder.path(), flags, Mode::RUSR | Mode::WUSR).is_ok()
}

/// The names in a folder.
fn names(folder: &Folder) -> Vec<String> {
    let entries = folder.path().read_dir().expect("it exists");
    entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn an_interrupted_quantize_leaves_no_file() {
    let model = random_llama(512, 2);
    for (target, weights) in [("q8_0", "out"), ("q4nx", "out/model.q4nx")] {
        let whole = Folder::new();
        let mut child = quantize(&model, &whole.file("out"), target);
        wait_for_file(&mut child, whole.path());
        let start = Instant::now();
        assert!(child.wait().expect("it is our child").success(), "{target}");
        let time = start.elapsed();
        let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL];
        for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
            let mut was_killed = false;
            for third in 0..3 {
                let (folder, mut child) = stopped_quantize(&model, "out", target);
                if third == 0 {
                    send(&child, signal); // comes as soon as it goes on
                }
                send(&child, Signal::CONT);
                std::thread::sleep(time * third / 3);
                send(&child, signal);
                let ended = child.wait().expect("it is our child");
                let what = format!("{target} {signal:?} after {third} thirds of {time:?}");
                // It may be complete before the signal.
                if folder.file(weights).exists() {
                    assert!(same_bytes(&folder.file(weights), &whole.file(weights)), "{what}");
                    continue;
                }
                was_killed = true;
                assert_eq!(ended.signal(), Some(signal.as_raw()), "{what}");
                // In the last milliseconds a new folder has small files, and no weights.
                if has_unnamed_files(&folder) && (target != "q4nx" || !folder.file("out").exists()) {
                    assert_eq!(names(&folder), [""; 0], "{what}");
                }
            }
            assert!(was_killed, "{target} {signal:?}: each run was complete before the signal");
        }
    }
}

#[test]
fn a_file_that_appears_during_a_quantize_is_kept() {
    let model = random_llama(256, 2);
    let (folder, child) = stopped_quantize(&model, "out.gguf", "q8_0");
    let out = folder.file("out.gguf");
    std::fs::write(&out, "theirs").expect("the folder is writable");
    send(&child, Signal::CONT);
    let ended = child.wait_with_output().expect("it is our child");
    let stderr = String::from_utf8(ended.stderr).expect("UTF-8");
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("has appeared while it was being written and was kept"), "{stderr}");
    assert_eq!(std::fs::read(&out).expect("it is there"), b"theirs");
    assert_eq!(names(&folder), ["out.gguf"]);
}
