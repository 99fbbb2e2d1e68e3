//! The life of an engine's thread: it loads, is ready, and ends. Threads and tasks that wait for it are told.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use girih_graph::{Error, ErrorKind, Phases, Result};

/// The wall-clock times of loading a model.
///
/// ```
/// let session = girih::Model::open("stories260k")?.start()?;
/// let times = session.wait_until_ready()?;
/// assert!(times.whole >= times.phases.weights);
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// The whole time.
    pub whole: Duration,
    /// The parts that were timed.
    pub phases: Phases,
}

/// What an engine's thread does.
#[derive(Clone, Debug, Default)]
pub(crate) enum EnginePhase {
    /// It loads the model.
    #[default]
    Loading,
    /// It takes requests.
    Ready(LoadTimes),
    /// The model could not be loaded.
    NotLoaded(Error),
    /// It has taken requests and takes no more.
    Ended(Error),
}

impl EnginePhase {
    /// The outcome of loading, or how the engine ended; `None` while it loads.
    fn outcome(&self) -> Option<Result<LoadTimes>> {
        match self {
            EnginePhase::Loading => None,
            EnginePhase::Ready(times) => Some(Ok(*times)),
            EnginePhase::NotLoaded(error) | EnginePhase::Ended(error) => Some(Err(error.clone())),
        }
    }
}

/// The phase of an engine's thread, and those that wait for the end of loading.
#[derive(Default)]
pub(crate) struct Readiness {
    state: Mutex<ReadinessState>,
    known: Condvar,
}

#[derive(Default)]
struct ReadinessState {
    phase: EnginePhase,
    /// The tasks that wait, each under a number of its own.
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

impl Readiness {
    /// Records the outcome of loading, once.
    pub fn settle(&self, outcome: Result<LoadTimes>) {
        self.pass_to(|phase| match (phase, outcome) {
            (EnginePhase::Loading, Ok(times)) => Some(EnginePhase::Ready(times)),
            (EnginePhase::Loading, Err(error)) => Some(EnginePhase::NotLoaded(error)),
            _ => None,
        });
    }

    /// Records that the thread takes no requests any more.
    fn end(&self) {
        self.pass_to(|phase| match phase {
            EnginePhase::Loading => {
                let sentence = "the engine's thread ended while it loaded the model; this is a bug in girih";
                Some(EnginePhase::NotLoaded(Error::with_kind(ErrorKind::DeviceFailed, sentence)))
            }
            EnginePhase::Ready(_) => {
                let sentence = "the engine has ended; load the model again";
                Some(EnginePhase::Ended(Error::with_kind(ErrorKind::DeviceFailed, sentence)))
            }
            EnginePhase::NotLoaded(_) | EnginePhase::Ended(_) => None,
        });
    }

    fn pass_to(&self, next: impl FnOnce(&EnginePhase) -> Option<EnginePhase>) {
        let mut state = self.lock();
        let Some(phase) = next(&state.phase) else { return };
        state.phase = phase;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.known.notify_all();
        for waker in wakers.into_values() {
            // A waker is the program's code; its panic must not end the engine's thread.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// The present phase.
    pub fn phase(&self) -> EnginePhase {
        self.lock().phase.clone()
    }

    /// Waits for the outcome of loading.
    pub fn wait(&self) -> Result<LoadTimes> {
        let state = self.known.wait_while(self.lock(), |state| matches!(state.phase, EnginePhase::Loading));
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.phase.outcome().expect("the wait ended with an outcome")
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, ReadinessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Belongs to an engine's thread; dropping it records the thread's end, also when it panics.
pub(crate) struct EngineLife(pub Arc<Readiness>);

impl Drop for EngineLife {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A future of the end of loading, for any runtime ([`Session::ready`](crate::Session::ready)). Dropping it
/// leaves nothing behind.
///
/// ```
/// use std::task::{Context, Poll, Waker};
///
/// # let session = girih::Model::open("stories260k")?.start()?;
/// let mut ready = std::pin::pin!(session.ready());
/// let polled = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
/// assert!(matches!(polled, Poll::Ready(Ok(_))));
/// # Ok::<(), girih::Error>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct WhenReady {
    readiness: Arc<Readiness>,
    /// The number of its waker.
    number: Option<u64>,
}

impl WhenReady {
    pub(crate) fn new(readiness: Arc<Readiness>) -> WhenReady {
        WhenReady { readiness, number: None }
    }
}

impl std::fmt::Debug for WhenReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WhenReady").finish_non_exhaustive()
    }
}

impl Future for WhenReady {
    type Output = Result<LoadTimes>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<LoadTimes>> {
        let readiness = Arc::clone(&self.readiness);
        let mut state = readiness.lock();
        if let Some(outcome) = state.phase.outcome() {
            return Poll::Ready(outcome);
        }
        let number = *self.number.get_or_insert(state.next);
        state.next = state.next.max(number + 1);
        state.wakers.insert(number, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for WhenReady {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.readiness.lock().wakers.remove(&number);
            // A waker is the program's code, which must not run while the lock is held.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn tasks_that_wait_are_woken_once_and_those_that_left_leave_nothing() {
        let readiness = Arc::new(Readiness::default());
        let wakes = Arc::new(CountedWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut waiting = [0; 3].map(|_| Box::pin(WhenReady::new(Arc::clone(&readiness))));
        for future in &mut waiting {
            for _ in 0..2 {
                assert!(future.as_mut().poll(&mut context).is_pending());
            }
        }
        let [left, mut first, mut second] = waiting;
        drop(left);
        assert_eq!(readiness.lock().wakers.len(), 2);
        readiness.settle(Ok(LoadTimes::default()));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(matches!(first.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
        drop(EngineLife(Arc::clone(&readiness)));
        assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(Err(_))), "it has ended meanwhile");
        assert!(readiness.wait().is_err());
    }

    #[test]
    fn a_thread_that_ends_before_it_is_ready_has_not_loaded() {
        let readiness = Arc::new(Readiness::default());
        drop(EngineLife(Arc::clone(&readiness)));
        assert!(matches!(readiness.phase(), EnginePhase::NotLoaded(_)));
        readiness.settle(Ok(LoadTimes::default()));
        let error = readiness.wait().unwrap_err();
        assert!(error.to_string().contains("ended while it loaded the model"), "{error}");
    }
}
