//! The server's side of the process that changes models.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::{Error, ErrorKind, Result};
use girih_serve::{ChangeEvent, ChangeListener, ModelChange, ModelChanger};

use super::message::{ChangeReport, End, Line, Order, line_of, read_line};
use super::names;
use super::pull::PullAccess;
use super::worker;

/// The process that changes the models of a folder; it ends with this one.
#[derive(Debug)]
pub struct ModelStore {
    /// Lines to the process, which a thread writes: it may be slow to read.
    orders: Sender<Vec<u8>>,
    listeners: Arc<Listeners>,
    /// Used by threads from the first change on: this is started when the server is confined, and so are they.
    pipes: Mutex<Option<Pipes>>,
    next: AtomicU64,
    _process: Child,
}

#[derive(Debug)]
struct Pipes {
    orders: Receiver<Vec<u8>>,
    input: ChildStdin,
    output: ChildStdout,
}

/// Who hears of the changes that run, by number; `None` when the process has ended.
struct Listeners(Mutex<Option<BTreeMap<u64, ChangeListener>>>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listeners").finish_non_exhaustive()
    }
}

impl ModelStore {
    /// Starts the process for a folder, in which at most `cap` bytes may lie.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(folder: &Path, cap: u64, access: PullAccess) -> Result<ModelStore> {
        let failed = |error: io::Error| {
            let sentence = format!("the process that changes models cannot be started: {error}");
            Error::with_kind(ErrorKind::Other, sentence)
        };
        let mut command = worker::command(folder, cap, access).map_err(failed)?;
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::new("the process that changes models has no input and output"));
        };
        let (sender, orders) = channel();
        Ok(ModelStore {
            orders: sender,
            listeners: Arc::new(Listeners(Mutex::new(Some(BTreeMap::new())))),
            pipes: Mutex::new(Some(Pipes { orders, input, output })),
            next: AtomicU64::new(1),
            _process: process,
        })
    }

    /// Starts the threads that write orders and read reports, at the first change.
    fn start_threads(&self) -> Result<()> {
        let Some(Pipes { orders, input, output }) = lock(&self.pipes).take() else { return Ok(()) };
        let (writing, reading) = (Arc::clone(&self.listeners), Arc::clone(&self.listeners));
        let started = thread::Builder::new()
            .spawn(move || write_all(&orders, input, &writing))
            .and_then(|_| thread::Builder::new().spawn(move || read_all(output, &reading)));
        started.map(|_| ()).map_err(|error| {
            self.listeners.end();
            Error::new(format!("no thread can be started: {error}"))
        })
    }
}

/// Writes orders until the process has ended, or there are none any more.
fn write_all(orders: &Receiver<Vec<u8>>, mut input: ChildStdin, listeners: &Listeners) {
    for line in orders {
        if input.write_all(&line).is_err() {
            return listeners.end();
        }
    }
}

/// Reads reports until the process has ended.
fn read_all(output: ChildStdout, listeners: &Listeners) {
    let mut reports = BufReader::new(output);
    loop {
        match read_line::<ChangeReport>(&mut reports) {
            Line::Read(report) => listeners.hear(report),
            Line::Faulty(number, sentence) => {
                let end = number.map(|_| End::Failed(sentence));
                listeners.hear(ChangeReport { number: number.unwrap_or(0), progress: None, end });
            }
            Line::End => return listeners.end(),
        }
    }
}

impl ModelChanger for ModelStore {
    fn begin(&self, change: ModelChange, listener: ChangeListener) -> Result<Box<dyn Any + Send>> {
        let changed = match &change {
            ModelChange::Pull { model } | ModelChange::Delete { model } => vec![model],
            ModelChange::Copy { source, destination } => vec![source, destination],
        };
        changed.into_iter().try_for_each(|name| names::check_length(name))?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let order = line_of(&Order { number, change: Some(change) });
        let order = order.map_err(|error| Error::with_kind(ErrorKind::Refused, error.to_string()))?;
        self.start_threads()?;
        if !self.listeners.add(number, listener) {
            return Err(ended());
        }
        self.orders.send(order).map_err(|_| ended())?;
        Ok(Box::new(ChangeHandle {
            number,
            orders: self.orders.clone(),
            listeners: Arc::clone(&self.listeners),
        }))
    }
}

/// Cancels its change when it is dropped.
struct ChangeHandle {
    number: u64,
    orders: Sender<Vec<u8>>,
    listeners: Arc<Listeners>,
}

impl Drop for ChangeHandle {
    fn drop(&mut self) {
        if self.listeners.remove(self.number)
            && let Ok(order) = line_of(&Order { number: self.number, change: None })
        {
            // A process that has ended does nothing any more.
            let _ = self.orders.send(order);
        }
    }
}

impl Listeners {
    /// Adds one; returns whether the process runs.
    fn add(&self, number: u64, listener: ChangeListener) -> bool {
        lock(&self.0).as_mut().map(|listeners| listeners.insert(number, listener)).is_some()
    }

    /// Removes one; returns whether it was there.
    fn remove(&self, number: u64) -> bool {
        lock(&self.0).as_mut().is_some_and(|listeners| listeners.remove(&number).is_some())
    }

    fn hear(&self, report: ChangeReport) {
        let mut listeners = lock(&self.0);
        let Some(listeners) = listeners.as_mut() else { return };
        if let (Some(progress), Some(listener)) = (report.progress, listeners.get(&report.number)) {
            listener(ChangeEvent::Progress(progress));
        }
        if let Some(end) = report.end
            && let Some(listener) = listeners.remove(&report.number)
        {
            listener(ChangeEvent::Ended(end.result()));
        }
    }

    /// The process has ended.
    fn end(&self) {
        for listener in lock(&self.0).take().into_iter().flatten().map(|(_, listener)| listener) {
            listener(ChangeEvent::Ended(Err(ended())));
        }
    }
}

fn ended() -> Error {
    Error::new("the process that changes models has ended; restart the server")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
