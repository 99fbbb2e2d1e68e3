//! The process that changes models: it reads orders from the server, and ends with it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::{Error, ErrorKind, Result};
use girih_file::quote;
use girih_serve::ModelChange;

use super::downloads::{Download, Downloads, MAX_DOWNLOADS};
use super::message::{ChangeOrder, ChangeReport};
use super::pull::{self, PullAccess};
use super::{arrivals, place};
use crate::helper_message::{End, Line, Order, read_line, write_line};
use crate::loading;

/// The hidden command of the process.
pub const WORKER_COMMAND: &str = "store-worker";

/// The maximum number of copies and deletions that wait.
const MAX_WAITING: usize = 256;

/// Changes models until the input ends: the arguments are the folder of models, the maximum of bytes in it, and with
/// which access models are downloaded.
pub fn worker_main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let [folder, cap, access] = arguments.as_slice() else { return ExitCode::from(2) };
    let cap = cap.to_str().and_then(|cap| cap.parse().ok());
    let (Some(cap), Some(access)) = (cap, PullAccess::of(access)) else { return ExitCode::from(2) };
    let (edits, waiting) = sync_channel(MAX_WAITING);
    let worker = Arc::new(StoreWorker {
        folder: folder.into(),
        cap,
        access,
        downloads: Downloads::default(),
        edits,
        changing: Mutex::new(()),
        output: Mutex::new(()),
    });
    place::remove_drafts(&worker.folder);
    let (downloading, editing) = (Arc::clone(&worker), Arc::clone(&worker));
    let started = thread::Builder::new()
        .spawn(move || downloading.download_all())
        .and_then(|_| thread::Builder::new().spawn(move || editing.edit_all(&waiting)));
    if started.is_err() {
        return ExitCode::FAILURE;
    }
    worker.obey_all();
    worker.downloads.end_all();
    ExitCode::SUCCESS
}

/// The command of a worker for this folder.
///
/// # Errors
/// When the path of this program is unknown.
pub fn command(folder: &Path, cap: u64, access: PullAccess) -> io::Result<Command> {
    let mut command = Command::new(loading::own_program()?);
    command.arg(WORKER_COMMAND).arg(folder).arg(cap.to_string()).arg(access.argument());
    Ok(command)
}

/// A change of files that are there.
enum Edit {
    Delete { model: String },
    Copy { source: String, destination: String },
}

/// What the threads of the process share: one reads orders, one downloads, and one copies and deletes.
struct StoreWorker {
    folder: PathBuf,
    cap: u64,
    access: PullAccess,
    downloads: Downloads,
    edits: SyncSender<(u64, Edit)>,
    /// Held while files of the folder get or lose names.
    changing: Mutex<()>,
    output: Mutex<()>,
}

impl StoreWorker {
    /// Obeys orders until there are none any more.
    fn obey_all(&self) {
        let mut orders = BufReader::new(io::stdin());
        loop {
            match read_line::<ChangeOrder>(&mut orders) {
                Line::End => return,
                Line::Read(Order { number, task: None }) => self.downloads.cancel(number),
                Line::Read(Order { number, task: Some(change) }) => {
                    if let Err(error) = self.accept(number, change) {
                        self.end(number, Err(error));
                    }
                }
                Line::Faulty(number, sentence) => {
                    let error = Error::with_kind(ErrorKind::Refused, sentence);
                    self.end(number.unwrap_or(0), Err(error));
                }
            }
        }
    }

    /// Hands a change to the thread that makes it.
    ///
    /// # Errors
    /// When too many wait.
    fn accept(&self, number: u64, change: ModelChange) -> Result<()> {
        let edit = match change {
            ModelChange::Pull { model } => {
                return match self.downloads.add(Download { number, model }) {
                    true => Ok(()),
                    false => Err(full(format!("{MAX_DOWNLOADS} downloads run or wait"))),
                };
            }
            ModelChange::Delete { model } => Edit::Delete { model },
            ModelChange::Copy { source, destination } => Edit::Copy { source, destination },
        };
        self.edits.try_send((number, edit)).map_err(|error| match error {
            TrySendError::Full(_) => full(format!("{MAX_WAITING} copies and deletions wait")),
            TrySendError::Disconnected(_) => Error::new("nothing is copied or deleted any more"),
        })
    }

    fn edit_all(&self, waiting: &Receiver<(u64, Edit)>) {
        for (number, edit) in waiting {
            let result = match edit {
                Edit::Delete { model } => self.delete(&model),
                Edit::Copy { source, destination } => self.copy(&source, &destination),
            };
            self.end(number, result);
        }
    }

    fn delete(&self, model: &str) -> Result<()> {
        let _changing = self.changing();
        let taken = self.downloads.without(model, || arrivals::take(&self.folder, model));
        let taken = taken.ok_or_else(|| {
            let sentence = format!("{} is being downloaded: end that request first", quote(model));
            Error::with_kind(ErrorKind::Refused, sentence)
        })?;
        let unremovable = |error| failed("what has arrived cannot be removed", &error);
        let taken = taken.map_err(unremovable)?;
        let removed = place::remove(&self.folder, model);
        let Some(taken) = taken else { return removed };
        fs::remove_dir_all(taken).map_err(unremovable)?;
        match removed {
            // Its download has begun and never ended.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn copy(&self, source: &str, destination: &str) -> Result<()> {
        let _changing = self.changing();
        arrivals::check_count(&self.folder, destination)?;
        place::copy(&self.folder, source, destination, self.cap)
    }

    fn download_all(&self) {
        while let Some((download, output)) = self.downloads.begin(|download| self.start(download)) {
            let result = match output {
                Ok(Some(output)) => self.download(&download, output),
                Ok(None) => Err(Error::new("the download tells nothing")),
                Err(error) => Err(failed("the download cannot be started", &error)),
            };
            if result.is_err() {
                arrivals::remove_if_empty(&self.folder, &download.model);
            }
            self.downloads.end();
            self.end(download.number, result);
        }
    }

    /// Starts the process of a download, which ends with this one.
    fn start(&self, Download { number, model }: &Download) -> io::Result<Child> {
        let mut command = pull::command(*number, &self.folder, self.cap, self.access, model)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    }

    /// Passes on what the process of a download tells, and gives its files their names.
    fn download(&self, download: &Download, output: ChildStdout) -> Result<()> {
        let end = self.passed_on(output);
        if !self.downloads.arrived() {
            return Err(Error::new("the download was cancelled"));
        }
        match end {
            None => Err(Error::new("the download was ended before it was complete")),
            Some(end) => end.result().and_then(|()| {
                let _changing = self.changing();
                arrivals::publish(&self.folder, &download.model)
            }),
        }
    }

    /// The end that a download tells; `None` if it tells none. Its progress is passed on.
    fn passed_on(&self, output: ChildStdout) -> Option<End> {
        let mut reports = BufReader::new(output);
        loop {
            match read_line::<ChangeReport>(&mut reports) {
                Line::Read(ChangeReport { end: Some(end), .. }) => return Some(end),
                Line::Read(report) => self.tell(&report),
                Line::Faulty(..) => {}
                Line::End => return None,
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

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }
}

fn full(what: String) -> Error {
    Error::with_kind(ErrorKind::QueueFull, format!("{what}; try again later"))
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{what}: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
