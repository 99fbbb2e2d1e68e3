//! Ctrl-C during a reply: from then on nothing of the reply is shown, and it is cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih::CancelHandle;

/// Stops the present reply from the thread of the signal.
#[derive(Clone, Debug, Default)]
pub struct StopButton(Arc<Pressable>);

#[derive(Debug, Default)]
struct Pressable {
    is_pressed: AtomicBool,
    /// What cancels the reply that is being generated.
    running: Mutex<Option<CancelHandle>>,
}

impl StopButton {
    /// Stops the present reply; between replies it does nothing.
    pub fn press(&self) {
        self.0.is_pressed.store(true, Ordering::SeqCst);
        if let Some(reply) = &*self.lock() {
            reply.cancel();
        }
    }

    /// Begins a reply, which is not stopped.
    pub fn begin(&self) {
        self.0.is_pressed.store(false, Ordering::SeqCst);
    }

    /// Cancels this reply when it is pressed, or now if it was pressed since [`StopButton::begin`].
    pub fn arm(&self, reply: CancelHandle) {
        *self.lock() = Some(reply.clone());
        if self.is_pressed() {
            reply.cancel();
        }
    }

    /// Ends a reply.
    pub fn disarm(&self) {
        *self.lock() = None;
    }

    /// Whether it was pressed since [`StopButton::begin`].
    pub fn is_pressed(&self) -> bool {
        self.0.is_pressed.load(Ordering::SeqCst)
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, Option<CancelHandle>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
