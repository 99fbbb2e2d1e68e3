//! girih under limits of its address space: it works or says what is missing, and never aborts.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use crate::program::{Folder, name};
use crate::random_model::random_llama;

/// The limits of the tests, in MiB: from less than the binary to more than enough.
const LIMITS_MIB: std::ops::Range<u64> = 8..480;

/// Runs the binary under `ulimit -v`.
fn limited(mib: u64, home: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v $0; exec \"$@\"", &(mib << 10).to_string()]);
    command.arg(env!("CARGO_BIN_EXE_girih")).args(arguments);
    command.env_clear().env("HOME", home.path()).stdin(Stdio::null());
    command.output().expect("the system has a shell")
}

/// Runs a call under every limit: it may fail with a sentence, but never end by itself.
fn check(home: &Folder, arguments: &[&str], step: usize) {
    let (mut refused, mut done) = (0, 0);
    for mib in LIMITS_MIB.step_by(step) {
        let ended = limited(mib, home, arguments);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let what = format!("{arguments:?} in {mib} MiB: {:?} {stderr}", ended.status);
        // Where the binary just fits, the runtime aborts before `main`.
        let begins = refused + done > 0 || ended.status.signal() != Some(6);
        if !begins {
            continue;
        }
        assert!(!stderr.contains("panicked") && !stderr.contains("memory allocation of"), "{what}");
        match (ended.status.code(), ended.status.signal()) {
            (Some(0), _) => done += 1,
            (Some(1), _) => {
                let last = stderr.lines().last().unwrap_or_default();
                assert!(last.starts_with("girih: "), "{what}");
                refused += 1;
            }
            // The system cannot load the binary, which has printed nothing.
            (Some(126 | 127), _) | (_, Some(9 | 11)) => {
                assert!(!stderr.lines().any(|line| line.starts_with("girih: ")) && done == 0, "{what}")
            }
            _ => panic!("{what}"),
        }
    }
    assert!(refused >= 2 && done >= 2, "{arguments:?}: {refused} refused, {done} done");
}

#[test]
fn the_built_in_model_runs_or_is_refused_under_any_limit() {
    check(&Folder::new(), &["run", "stories260k", "Once upon", "-n", "4", "--threads", "2"], 8);
}

#[test]
fn a_model_of_30_megabytes_runs_or_is_refused_under_any_limit() {
    let model = random_llama(512, 4);
    check(&Folder::new(), &["run", model.name(), "Hi", "-n", "2", "--threads", "2"], 16);
    check(&Folder::new(), &["inspect", model.name()], 32);
}

#[test]
fn a_conversion_runs_or_is_refused_under_any_limit() {
    let (model, folder) = (random_llama(512, 1), Folder::new());
    let mut begins = false;
    for mib in LIMITS_MIB.step_by(32) {
        let out = folder.file(&format!("{mib}.gguf"));
        let ended = limited(mib, &folder, &["quantize", model.name(), name(&out), "--type", "q8_0"]);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        // Where the binary just fits, the runtime aborts before `main`.
        begins |= matches!(ended.status.code(), Some(0 | 1));
        assert!(ended.status.signal() != Some(6) || !begins, "{mib} MiB: {stderr}");
        assert!(
            !stderr.contains("panicked") && !stderr.contains("memory allocation of"),
            "{mib} MiB: {stderr}"
        );
        assert_eq!(ended.status.success(), out.exists(), "{mib} MiB: {stderr}");
    }
}
