//! Calls of recursive code, on a stack that is deep enough for what the limits allow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use girih_tensor::{Error, ErrorKind, Result};

use crate::limits::STACK_BYTES;
use crate::mask_thread::panicked;

/// Calls `run` on a thread with a deep stack; a panic is an error.
pub(crate) fn on_deep_stack<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("girih-grammar".to_owned()).stack_size(STACK_BYTES);
        let guarded = || catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panicked()));
        let thread = builder.spawn_scoped(scope, guarded).map_err(|error| {
            let sentence = format!("a thread for grammars cannot be started: {error}");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}
