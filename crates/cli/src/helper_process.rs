//! A process beside the server that does what the sandbox forbids the server, such as connecting to other machines.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::helper_message::{End, HelperReport, Line, Order, line_of, read_line};

/// What happens to a task.
pub enum HelperEvent<P> {
    /// It has come this far.
    Progress(P),
    /// It has ended: the last event.
    Ended(Result<()>),
}

/// Hears the events of a task.
pub type HelperListener<P> = Box<dyn Fn(HelperEvent<P>) + Send + Sync>;

/// A process that does tasks, whose progress is a `P`; it ends with this one.
#[derive(Debug)]
pub struct HelperProcess<P> {
    /// Lines to the process, which a thread writes: it may be slow to read.
    orders: Sender<Vec<u8>>,
    listeners: Arc<Listeners<P>>,
    /// Used by threads from the first task on: this is started when the server is confined, and so are they.
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

/// Who hears of the tasks that run.
struct Listeners<P> {
    /// The process, in the words of errors.
    process: &'static str,
    /// By number; `None` when the process has ended.
    by_number: Mutex<Option<BTreeMap<u64, HelperListener<P>>>>,
}

impl<P> fmt::Debug for Listeners<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

impl<P: DeserializeOwned + 'static> HelperProcess<P> {
    /// Starts a process, which errors name so.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: io::Result<Command>, process: &'static str) -> Result<HelperProcess<P>> {
        let failed = |error: io::Error| {
            Error::with_kind(ErrorKind::Other, format!("{process} cannot be started: {error}"))
        };
        let mut command = command.map_err(failed)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new(format!("{process} has no input and output")));
        };
        let (sender, orders) = channel();
        Ok(HelperProcess {
            orders: sender,
            listeners: Arc::new(Listeners { process, by_number: Mutex::new(Some(BTreeMap::new())) }),
            pipes: Mutex::new(Some(Pipes { orders, input, output })),
            next: AtomicU64::new(1),
            _process: child,
        })
    }

    /// Begins a task, whose events `listener` hears. Dropping the result cancels it.
    ///
    /// # Errors
    /// When the order is too long, or the process has ended.
    pub fn begin(&self, task: &impl Serialize, listener: HelperListener<P>) -> Result<HelperTask<P>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let order = line_of(&Order { number, task: Some(task) });
        let order = order.map_err(|error| Error::with_kind(ErrorKind::Refused, error.to_string()))?;
        self.start_threads()?;
        if !self.listeners.add(number, listener) {
            return Err(self.listeners.ended());
        }
        self.orders.send(order).map_err(|_| self.listeners.ended())?;
        Ok(HelperTask { number, orders: self.orders.clone(), listeners: Arc::clone(&self.listeners) })
    }

    /// Starts the threads that write orders and read reports, at the first task.
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
fn write_all<P>(orders: &Receiver<Vec<u8>>, mut input: ChildStdin, listeners: &Listeners<P>) {
    for line in orders {
        if input.write_all(&line).is_err() {
            return listeners.end();
        }
    }
}

/// Reads reports until the process has ended.
fn read_all<P: DeserializeOwned>(output: ChildStdout, listeners: &Listeners<P>) {
    let mut reports = BufReader::new(output);
    loop {
        match read_line::<HelperReport<P>>(&mut reports) {
            Line::Read(report) => listeners.hear(report),
            Line::Faulty(number, sentence) => {
                let end = number.map(|_| End::Failed(sentence));
                listeners.hear(HelperReport { number: number.unwrap_or(0), progress: None, end });
            }
            Line::End => return listeners.end(),
        }
    }
}

/// A task that has begun; dropping it cancels it.
pub struct HelperTask<P> {
    number: u64,
    orders: Sender<Vec<u8>>,
    listeners: Arc<Listeners<P>>,
}

impl<P> Drop for HelperTask<P> {
    fn drop(&mut self) {
        if self.listeners.remove(self.number)
            && let Ok(order) = line_of(&Order::<()> { number: self.number, task: None })
        {
            // A process that has ended does nothing any more.
            let _ = self.orders.send(order);
        }
    }
}

impl<P> Listeners<P> {
    /// Adds one; returns whether the process runs.
    fn add(&self, number: u64, listener: HelperListener<P>) -> bool {
        lock(&self.by_number).as_mut().map(|listeners| listeners.insert(number, listener)).is_some()
    }

    /// Removes one; returns whether it was there.
    fn remove(&self, number: u64) -> bool {
        lock(&self.by_number).as_mut().is_some_and(|listeners| listeners.remove(&number).is_some())
    }

    fn hear(&self, report: HelperReport<P>) {
        let mut listeners = lock(&self.by_number);
        let Some(listeners) = listeners.as_mut() else { return };
        if let (Some(progress), Some(listener)) = (report.progress, listeners.get(&report.number)) {
            listener(HelperEvent::Progress(progress));
        }
        if let Some(end) = report.end
            && let Some(listener) = listeners.remove(&report.number)
        {
            listener(HelperEvent::Ended(end.result()));
        }
    }

    /// The process has ended.
    fn end(&self) {
        for listener in lock(&self.by_number).take().into_iter().flatten().map(|(_, listener)| listener) {
            listener(HelperEvent::Ended(Err(self.ended())));
        }
    }

    fn ended(&self) -> Error {
        Error::new(format!("{} has ended; restart the server", self.process))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
