//! Calls of the binary, each in an environment of its own, and the paths of test
//! files.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;

/// A call of the binary. Its environment has only the variables that a test sets,
/// and an empty home folder.
pub struct Call {
    command: Command,
    stdin: Vec<u8>,
    home: Folder,
}

/// How a call ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error: notes or an error.
    pub stderr: String,
}

/// A call with these arguments.
pub fn girih<S: AsRef<str>>(arguments: &[S]) -> Call {
    let home = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
    command.args(arguments.iter().map(AsRef::as_ref)).env_clear().env("HOME", home.path());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    Call { command, stdin: Vec::new(), home }
}

impl Call {
    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Call {
        self.command.env(name, value);
        self
    }

    /// Adds arguments.
    pub fn with<S: AsRef<str>>(mut self, arguments: &[S]) -> Call {
        self.command.args(arguments.iter().map(AsRef::as_ref));
        self
    }

    /// Sets standard input, which is empty by default.
    pub fn stdin(mut self, text: impl AsRef<[u8]>) -> Call {
        self.stdin = text.as_ref().to_vec();
        self
    }

    /// Writes a file into the home folder.
    pub fn home_file(self, name: &str, text: &str) -> Call {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it lies in the home")).expect("the home is writable");
        std::fs::write(path, text).expect("the home is writable");
        self
    }

    /// Runs the call to its end.
    pub fn end(self) -> Ended {
        self.print_to(Stdio::piped(), Stdio::piped())
    }

    /// Runs the call with a terminal as standard output; returns what the terminal received.
    pub fn stdout_on_terminal(self) -> Ended {
        let terminal = Terminal::open();
        let mut ended = self.print_to(terminal.side(), Stdio::piped());
        ended.stdout = terminal.received();
        ended
    }

    /// As [`Call::stdout_on_terminal`], for standard output and standard error, each with a terminal of
    /// `columns` of its own.
    pub fn on_terminals_of(self, columns: u16) -> Ended {
        let [stdout, stderr] = [(); 2].map(|()| Terminal::of(columns));
        let mut ended = self.print_to(stdout.side(), stderr.side());
        (ended.stdout, ended.stderr) = (stdout.received(), stderr.received());
        ended
    }

    /// Runs the call with a terminal as standard error; returns what the terminal received.
    pub fn stderr_on_terminal(self) -> Ended {
        let terminal = Terminal::open();
        let mut ended = self.print_to(Stdio::piped(), terminal.side());
        ended.stderr = terminal.received();
        ended
    }

    /// Runs the call with a terminal as standard input and standard error, on which `line` is typed.
    pub fn answered(self, line: &str) -> Ended {
        let terminal = Terminal::open();
        terminal
            .keyboard
            .try_clone()
            .and_then(|mut keyboard| keyboard.write_all(line.as_bytes()))
            .expect("the terminal takes a line");
        let (keyboard, screen) = (terminal.side(), terminal.side());
        let mut ended = self.run_with(keyboard, Stdio::piped(), screen);
        ended.stderr = terminal.received();
        ended
    }

    /// Runs the call with a closed pipe as standard output.
    pub fn unread(self) -> Ended {
        let (reader, writer) = std::io::pipe().expect("the system has pipes");
        drop(reader);
        self.print_to(writer.into(), Stdio::piped())
    }

    fn print_to(self, stdout: Stdio, stderr: Stdio) -> Ended {
        self.run_with(Stdio::piped(), stdout, stderr)
    }

    fn run_with(mut self, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Ended {
        self.command.stdin(stdin).stdout(stdout).stderr(stderr);
        let mut child = self.command.spawn().expect("the binary is there");
        // The command holds its side of a terminal, which must be closed to end the reading of it.
        drop(self.command);
        let (pipe, stdin) = (child.stdin.take(), self.stdin);
        let writer = std::thread::spawn(move || {
            // A call that fails early does not read its input.
            let _ = pipe.map(|mut pipe| pipe.write_all(&stdin));
        });
        let output = child.wait_with_output().expect("the call ends");
        writer.join().expect("the writer does not panic");
        let text = |bytes| String::from_utf8(bytes).expect("the binary prints UTF-8");
        Ended {
            code: output.status.code().expect("no signal ends it"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs the call, which must succeed.
    pub fn done(self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
        ended
    }

    /// Runs the call, which must fail with this exit code and an error that
    /// contains `words`.
    pub fn fails(self, code: i32, words: &str) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(words), "'{words}' is not in: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }
}

impl Ended {
    /// The last line, which is JSON.
    pub fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Every line, all of them JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(value).collect()
    }
}

/// A terminal that keeps what is printed on it.
struct Terminal {
    program_side: File,
    keyboard: File,
    reader: std::thread::JoinHandle<Vec<u8>>,
}

impl Terminal {
    fn open() -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has terminals");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("the terminal is ours");
        let path = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("in UTF-8");
        let program_side = File::options().read(true).write(true).open(path).expect("it is unlocked");
        let ours = File::from(ours);
        let keyboard = ours.try_clone().expect("there are few open files");
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            let mut ours = ours;
            // It ends with an error when no program has the terminal open.
            let _ = ours.read_to_end(&mut received);
            received
        });
        Terminal { program_side, keyboard, reader }
    }

    /// A terminal that tells its number of columns.
    fn of(columns: u16) -> Terminal {
        let terminal = Terminal::open();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal.keyboard, size).expect("it has a size");
        terminal
    }

    /// The side for a program.
    fn side(&self) -> Stdio {
        self.program_side.try_clone().expect("there are few open files").into()
    }

    /// All that the programs printed, with the line ends that they printed.
    fn received(self) -> String {
        drop(self.program_side);
        let received = self.reader.join().expect("the reader does not panic");
        String::from_utf8(received).expect("the binary prints UTF-8").replace("\r\n", "\n")
    }
}

/// A temporary folder, removed with this value.
pub struct Folder(TempDir);

impl Folder {
    /// A new, empty folder of this user alone, whatever the umask.
    pub fn new() -> Folder {
        let mode = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(mode).tempdir();
        Folder(folder.expect("the temporary folder is writable"))
    }

    /// A new folder with copies of these files of another.
    pub fn of(source: &Path, files: &[&str]) -> Folder {
        let folder = Folder::new();
        files.iter().for_each(|name| folder.copy(&source.join(name), name));
        folder
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Its path, as an argument.
    pub fn name(&self) -> &str {
        name(self.0.path())
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Copies a file into it.
    pub fn copy(&self, from: &Path, to: &str) {
        // Written, as a copy would inherit a write protection.
        let bytes = std::fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        std::fs::write(self.file(to), bytes).expect("the temporary folder is writable");
    }

    /// Writes a file into it and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.file(name), text).expect("the temporary folder is writable");
        self.file(name)
    }
}

/// A path as an argument.
pub fn name(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are UTF-8")
}

/// A folder of `tests/fixtures`.
pub fn fixture(folder: &str) -> PathBuf {
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&crate_folder).join("../../tests/fixtures").join(folder)
}

/// The folder of the test data, or `None` with a note on standard error.
pub fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}

/// The text of a file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of JSON.
pub fn read_json(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
