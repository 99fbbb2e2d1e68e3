//! A program that is used at a terminal: keys are typed, and what the terminal shows is read.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::program::Folder;

/// Ctrl-C.
pub const CTRL_C: &str = "\u{3}";

/// Ctrl-D.
pub const CTRL_D: &str = "\u{4}";

/// The time for which a text is awaited: far more than it takes, as tests run beside others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call of the binary whose standard streams are one terminal, in a session of its own.
pub struct Console {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// The number of bytes up to the last text that was awaited.
    seen: usize,
}

impl Console {
    /// Starts the binary with this home folder and these variables.
    pub fn start(arguments: &[&str], home: &Folder, variables: &[(&str, &str)]) -> Console {
        Console::start_with(arguments, home, variables, None)
    }

    /// As [`Console::start`], but standard output is a pipe; also returns its end to read.
    pub fn start_piped(
        arguments: &[&str],
        home: &Folder,
        variables: &[(&str, &str)],
    ) -> (Console, PipeReader) {
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        (Console::start_with(arguments, home, variables, Some(writer.into())), reader)
    }

    fn start_with(
        arguments: &[&str],
        home: &Folder,
        variables: &[(&str, &str)],
        stdout: Option<Stdio>,
    ) -> Console {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has terminals");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("the terminal is ours");
        let path = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("in UTF-8");
        let side = File::options().read(true).write(true).open(path).expect("it is unlocked");
        let stream = || Stdio::from(side.try_clone().expect("there are few open files"));
        // It makes standard input the terminal of a new session, so that Ctrl-C becomes a signal.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_girih")).args(arguments);
        command.env_clear().env("HOME", home.path()).envs(variables.iter().copied());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let child = command.stdin(stream()).stdout(stdout.unwrap_or_else(stream)).stderr(stream()).spawn();
        let child = child.expect("util-linux and the binary are there");
        let keyboard = File::from(ours);
        let mut screen = keyboard.try_clone().expect("there are few open files");
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let read = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // It ends with an error when no program has the terminal open.
            while let Ok(count @ 1..) = screen.read(&mut piece) {
                read.lock().expect("no test panics while it reads").extend(&piece[..count]);
            }
        });
        Console { child, keyboard, shown, seen: 0 }
    }

    /// Types keys.
    pub fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Types a line.
    pub fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\r"));
    }

    /// Everything that was shown so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("the reader does not panic")).into_owned()
    }

    /// Waits for a text after the last one; returns what was shown up to its end.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let shown = self.shown.lock().expect("the reader does not panic").clone();
            let new = &shown[self.seen..];
            let found = new.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(at) = found {
                self.seen += at + text.len();
                return String::from_utf8_lossy(&new[..at + text.len()]).into_owned();
            }
            let rest = String::from_utf8_lossy(new);
            assert!(begin.elapsed() < PATIENCE, "{text:?} is not in {rest:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of the program; returns its exit code.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it runs on: {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
