//! Ctrl-C during a reply: from then on nothing of the reply is shown, and it is cancelled.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use girih::CancelHandle;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Stops the current reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyInterrupt(Arc<InterruptState>);

#[derive(Debug, Default)]
struct InterruptState {
    is_interrupted: Arc<AtomicBool>,
    /// What cancels the reply that is being generated.
    running: Mutex<Option<CancelHandle>>,
}

impl ReplyInterrupt {
    /// Stops the current reply on Ctrl-C; between replies it does nothing. The signal's handler itself
    /// sets the flag, so no text is shown while the thread that cancels the reply wakes up.
    ///
    /// # Errors
    /// When the signal cannot be handled.
    pub fn listen(&self) -> io::Result<()> {
        flag::register(SIGINT, Arc::clone(&self.0.is_interrupted))?;
        let mut signals = Signals::new([SIGINT])?;
        let interrupt = self.clone();
        thread::spawn(move || signals.forever().for_each(|_| interrupt.cancel()));
        Ok(())
    }

    fn cancel(&self) {
        if let Some(reply) = &*self.lock() {
            reply.cancel();
        }
    }

    /// Begins a reply, which is not stopped.
    pub fn begin(&self) {
        self.0.is_interrupted.store(false, Ordering::SeqCst);
    }

    /// Cancels this reply on an interrupt, or now if there was one since [`ReplyInterrupt::begin`].
    pub fn attach(&self, reply: CancelHandle) {
        *self.lock() = Some(reply.clone());
        if self.is_interrupted() {
            reply.cancel();
        }
    }

    /// Ends a reply.
    pub fn detach(&self) {
        *self.lock() = None;
    }

    /// Whether there was an interrupt since [`ReplyInterrupt::begin`].
    pub fn is_interrupted(&self) -> bool {
        self.0.is_interrupted.load(Ordering::SeqCst)
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, Option<CancelHandle>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
