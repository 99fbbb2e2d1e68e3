//! What surrounds each call from C: no panic crosses, none is printed, and a fault is kept for the thread.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use crate::status::{Fault, Result, Status, keep};

/// What the names of the library's own threads begin with.
const OWN_THREADS: &str = "girih";

/// The message of the last panic of an own thread, which ends its engine.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is in a call.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Runs the work of a call and returns its code.
pub fn call(work: impl FnOnce() -> Result<()>) -> Status {
    match caught(work) {
        Ok(()) => Status::Ok,
        Err(fault) => fault.status,
    }
}

/// Runs the work of a call; its fault is also kept for the thread.
///
/// # Errors
/// As `work`; of the status [`Status::Panicked`] when it panics.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    keep_quiet();
    let was_in_call = IN_CALL.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IN_CALL.set(was_in_call);
    let done = done.unwrap_or_else(|panic| {
        let message = message_of(&*panic);
        Err(Fault::new(Status::Panicked, format!("girih has a fault, please report it: {message}")))
    });
    done.map_err(with_last_panic).inspect_err(keep)
}

/// Adds why an engine has ended to a fault that says that it has.
fn with_last_panic(fault: Fault) -> Fault {
    let last = LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match last.filter(|_| fault.status == Status::DeviceFailed) {
        Some(message) => {
            Fault { sentence: format!("{} (a thread failed: {message})", fault.sentence), ..fault }
        }
        None => fault,
    }
}

/// Keeps the messages of panics in calls and of own threads from standard error. Those of other threads are printed
/// as before, for programs in Rust that link the library.
fn keep_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            let is_own = thread::current().name().is_some_and(|name| name.starts_with(OWN_THREADS));
            if is_own {
                let message = message_of(panic.payload());
                *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
            } else if !IN_CALL.get() {
                before(panic);
            }
        }));
    });
}

/// The text of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::status::last;

    #[test]
    fn a_panic_becomes_a_fault_with_its_message() {
        assert_eq!(call(|| panic!("the cat is {}", "out")), Status::Panicked);
        let fault = caught::<()>(|| panic!("the dog is out")).unwrap_err();
        assert!(fault.sentence.ends_with("the dog is out"), "{fault:?}");
        assert!(!IN_CALL.get());
    }

    #[test]
    fn a_fault_is_kept_for_its_thread_only() {
        assert_eq!(call(|| Err(Fault::argument("no cat"))), Status::InvalidArgument);
        let other = thread::spawn(|| last().addr()).join().unwrap();
        assert_ne!(last().addr(), other);
        assert_eq!(call(|| Ok(())), Status::Ok);
        assert!(CStr::to_bytes(crate::status::name(12).unwrap()).starts_with(b"invalid"));
    }
}
