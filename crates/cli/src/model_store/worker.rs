//! The process that changes models: it reads orders from the server, and ends with it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::{Error, ErrorKind, Result};
use girih_serve::ModelChange;

use super::message::{ChangeReport, End, Order, read_line, write_line};
use super::place;
use super::pull::{PULL_COMMAND, forget};
use crate::loading;

/// The hidden command of the process.
pub const WORKER_COMMAND: &str = "store-worker";

/// The maximum number of downloads that run or wait; one runs at a time.
const MAX_PULLS: usize = 8;

/// Changes models until the input ends: the arguments are the folder of models and the maximum of bytes in it.
pub fn worker_main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let [folder, cap] = arguments.as_slice() else { return ExitCode::from(2) };
    let cap = cap.to_string_lossy().into_owned();
    let worker = Arc::new(StoreWorker {
        folder: folder.into(),
        cap,
        turn: Mutex::new(()),
        pulls: Mutex::default(),
        output: Mutex::new(()),
    });
    let mut orders = BufReader::new(io::stdin());
    while let Some(Order { number, change }) = read_line::<Order>(&mut orders) {
        worker.obey(number, change);
    }
    worker.end_all();
    ExitCode::SUCCESS
}

/// What the threads of the process share.
struct StoreWorker {
    folder: PathBuf,
    cap: String,
    /// Held by the download that runs.
    turn: Mutex<()>,
    /// The downloads that run or wait, by number.
    pulls: Mutex<BTreeMap<u64, PullState>>,
    output: Mutex<()>,
}

/// What a download does.
enum PullState {
    Waiting,
    Running(Child),
}

impl StoreWorker {
    fn obey(self: &Arc<StoreWorker>, number: u64, change: Option<ModelChange>) {
        let model = match change {
            None => return self.cancel(number),
            Some(ModelChange::Pull { model }) => model,
            Some(ModelChange::Delete { model }) => {
                let removed = place::remove(&self.folder, &model);
                if removed.is_ok() {
                    forget(&self.folder, &model);
                }
                return self.end(number, removed);
            }
            Some(ModelChange::Copy { source, destination }) => {
                return self.end(number, place::copy(&self.folder, &source, &destination));
            }
        };
        let mut pulls = self.pulls();
        if pulls.len() >= MAX_PULLS {
            drop(pulls);
            let sentence = format!("{MAX_PULLS} downloads run or wait; try again later");
            return self.end(number, Err(Error::with_kind(ErrorKind::QueueFull, sentence)));
        }
        pulls.insert(number, PullState::Waiting);
        drop(pulls);
        let worker = Arc::clone(self);
        let started = thread::Builder::new().spawn(move || {
            let result = worker.pull(number, &model);
            if worker.pulls().remove(&number).is_some()
                && let Err(error) = result
            {
                worker.end(number, Err(error));
            }
        });
        if let Err(error) = started {
            self.pulls().remove(&number);
            self.end(number, Err(failed("a thread", &error)));
        }
    }

    /// Runs a download in a process of its own, which tells its end.
    ///
    /// # Errors
    /// When it does not.
    fn pull(&self, number: u64, model: &str) -> Result<()> {
        let _turn = lock(&self.turn);
        let program = loading::own_program().map_err(|error| failed("the program", &error))?;
        let mut command = Command::new(program);
        command.arg(PULL_COMMAND).arg(number.to_string()).arg(&self.folder).arg(&self.cap).arg(model);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let output = {
            let mut pulls = self.pulls();
            // It may have been cancelled while it waited.
            let Some(state) = pulls.get_mut(&number) else { return Ok(()) };
            let mut child = command.spawn().map_err(|error| failed("the download", &error))?;
            let output = child.stdout.take();
            *state = PullState::Running(child);
            output
        };
        let mut reports = BufReader::new(output.ok_or_else(|| Error::new("the download tells nothing"))?);
        let mut has_ended = false;
        while let Some(report) = read_line::<ChangeReport>(&mut reports) {
            has_ended |= report.end.is_some();
            self.tell(&report);
        }
        if let Some(PullState::Running(child)) = self.pulls().get_mut(&number) {
            // Its output has ended, so it ends.
            let _ = child.wait();
        }
        if has_ended { Ok(()) } else { Err(Error::new("the download was ended before it was complete")) }
    }

    fn cancel(&self, number: u64) {
        if let Some(PullState::Running(mut child)) = self.pulls().remove(&number) {
            end_child(&mut child);
        }
    }

    fn end_all(&self) {
        for (_, state) in std::mem::take(&mut *self.pulls()) {
            if let PullState::Running(mut child) = state {
                end_child(&mut child);
            }
        }
    }

    fn end(&self, number: u64, result: Result<()>) {
        self.tell(&ChangeReport { number, end: Some(End::of(result)), ..ChangeReport::default() });
    }

    fn tell(&self, report: &ChangeReport) {
        let _output = lock(&self.output);
        // Nobody reads when the server is gone: then the input has ended, too.
        let _ = write_line(io::stdout(), report);
    }

    fn pulls(&self) -> MutexGuard<'_, BTreeMap<u64, PullState>> {
        lock(&self.pulls)
    }
}

/// Ends a process that may have ended.
fn end_child(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{what} cannot be started: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command of a worker for this folder.
///
/// # Errors
/// When the path of this program is unknown.
pub fn command(folder: &Path, cap: u64) -> io::Result<Command> {
    let mut command = Command::new(loading::own_program()?);
    command.arg(WORKER_COMMAND).arg(folder).arg(cap.to_string());
    Ok(command)
}
