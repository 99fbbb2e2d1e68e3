//! Waits that release the interpreter's lock and end with Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use girih::{Error, ErrorKind, Result};
use pyo3::prelude::*;

/// The time after which a wait asks whether a signal has come: a person does not notice it, and 20 questions in a second
/// cost nothing.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The stack of a thread that computes, as that of the engine's thread.
const STACK_BYTES: usize = 8 << 20;

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls until the answer is there, without the interpreter's lock. Every 50 ms it looks for signals and calls `meanwhile`
/// with the lock.
///
/// # Errors
/// What a signal handler raises, such as `KeyboardInterrupt`, and the errors of `meanwhile`.
pub fn wait<T: Send>(
    py: Python<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T> + Send,
    mut meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match py.detach(|| poll_for(&waker, &mut poll)) {
            Poll::Ready(answer) => return Ok(answer),
            Poll::Pending => {
                py.check_signals()?;
                meanwhile(py)?;
            }
        }
    }
}

/// Polls for the time of an interval.
fn poll_for<T>(waker: &Waker, poll: &mut impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let end = Instant::now() + SIGNAL_INTERVAL;
    loop {
        if let Poll::Ready(answer) = poll(&mut Context::from_waker(waker)) {
            return Poll::Ready(answer);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Poll::Pending;
        }
        thread::park_timeout(left);
    }
}

/// Runs `work` on a thread of its own and waits for it as [`wait`] does. After a signal the work goes on, but nobody waits.
///
/// # Errors
/// Those of [`wait`]; the inner ones are those of `work`, and that no thread can be started.
pub fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
    meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<Result<T>> {
    let slot = Arc::new(Mutex::new(None));
    let (waiting, filled) = (thread::current(), Arc::clone(&slot));
    let body = move || {
        let answer = work();
        *lock(&filled) = Some(answer);
        waiting.unpark();
    };
    let thread =
        match thread::Builder::new().name("girih-python".to_owned()).stack_size(STACK_BYTES).spawn(body) {
            Ok(thread) => thread,
            Err(error) => {
                let sentence = format!("no thread can be started: {error}");
                return Ok(Err(Error::with_kind(ErrorKind::DeviceFailed, sentence)));
            }
        };
    let ended = || {
        let sentence = "a thread ended before its work was done; this is a bug in girih";
        Err(Error::with_kind(ErrorKind::DeviceFailed, sentence))
    };
    let poll = |_: &mut Context<'_>| {
        let has_ended = thread.is_finished();
        match lock(&slot).take() {
            Some(answer) => Poll::Ready(answer),
            None if has_ended => Poll::Ready(ended()),
            None => Poll::Pending,
        }
    };
    wait(py, poll, meanwhile)
}

/// Runs `drop` without the interpreter's lock, as what it drops may wait for a thread.
pub fn without_lock(drop: impl FnOnce() + Send) {
    let mut drop = Some(drop);
    let _ = Python::try_attach(|py| drop.take().map(|drop| py.detach(drop)));
    // The interpreter is ending: there is no lock to release.
    if let Some(drop) = drop {
        drop();
    }
}

/// Locks a mutex; no code panics while it holds one of this crate, so a poisoned one has valid contents.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
