//! The server's side of the process that changes models.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::{Error, ErrorKind, Result};
use girih_serve::{ChangeEvent, ChangeListener, ModelChange, ModelChanger};

use super::message::{ChangeReport, Order, read_line, write_line};
use super::place;
use super::worker;

/// The process that changes the models of a folder; it ends with this one.
#[derive(Debug)]
pub struct ModelStore {
    orders: Arc<Orders>,
    listeners: Arc<Listeners>,
    /// Read by a thread from the first change on: it is started when the server is confined, and so is the thread.
    reports: Mutex<Option<ChildStdout>>,
    next: AtomicU64,
    _process: Child,
}

/// The lines to the process.
#[derive(Debug)]
struct Orders(Mutex<ChildStdin>);

impl Orders {
    fn send(&self, order: &Order) -> io::Result<()> {
        write_line(&mut *lock(&self.0), order)
    }
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
    pub fn start(folder: &Path, cap: u64) -> Result<ModelStore> {
        let failed = |error: io::Error| {
            let sentence = format!("the process that changes models cannot be started: {error}");
            Error::with_kind(ErrorKind::Other, sentence)
        };
        let mut command = worker::command(folder, cap).map_err(failed)?;
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::new("the process that changes models has no input and output"));
        };
        Ok(ModelStore {
            orders: Arc::new(Orders(Mutex::new(input))),
            listeners: Arc::new(Listeners(Mutex::new(Some(BTreeMap::new())))),
            reports: Mutex::new(Some(output)),
            next: AtomicU64::new(1),
            _process: process,
        })
    }

    /// Starts the thread that reads reports, at the first change.
    fn start_reading(&self) -> Result<()> {
        let Some(output) = lock(&self.reports).take() else { return Ok(()) };
        let listeners = Arc::clone(&self.listeners);
        let started = thread::Builder::new().spawn(move || {
            let mut reports = BufReader::new(output);
            while let Some(report) = read_line::<ChangeReport>(&mut reports) {
                listeners.hear(report);
            }
            listeners.end();
        });
        started.map(|_| ()).map_err(|error| Error::new(format!("no thread can be started: {error}")))
    }
}

impl ModelChanger for ModelStore {
    fn begin(&self, change: ModelChange, listener: ChangeListener) -> Result<Box<dyn Any + Send>> {
        // A longer order would be cut, which ends the process.
        let names = match &change {
            ModelChange::Pull { model } | ModelChange::Delete { model } => vec![model],
            ModelChange::Copy { source, destination } => vec![source, destination],
        };
        names.into_iter().try_for_each(|name| place::check_length(name))?;
        self.start_reading()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.listeners.add(number, listener) {
            return Err(ended());
        }
        self.orders.send(&Order { number, change: Some(change) }).map_err(|_| ended())?;
        Ok(Box::new(ChangeHandle {
            number,
            orders: Arc::clone(&self.orders),
            listeners: Arc::clone(&self.listeners),
        }))
    }
}

/// Cancels its change when it is dropped.
struct ChangeHandle {
    number: u64,
    orders: Arc<Orders>,
    listeners: Arc<Listeners>,
}

impl Drop for ChangeHandle {
    fn drop(&mut self) {
        if self.listeners.remove(self.number) {
            // A process that has ended does nothing any more.
            let _ = self.orders.send(&Order { number: self.number, change: None });
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
