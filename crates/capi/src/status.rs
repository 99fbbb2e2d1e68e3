//! How a call ended: a code, and a sentence for the last fault of a thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use girih::{Error, ErrorKind};

/// How a call ended. Later versions may add codes; the numbers of these stay.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call did what it says.
    Ok = 0,
    /// A parameter or a request is wrong, or not supported.
    Refused = 1,
    /// A prompt, or a prompt with its reply, exceeds the context.
    TooLong = 2,
    /// The queue of requests is full; the same request may succeed later.
    QueueFull = 3,
    /// The request waited longer than is allowed; the same request may succeed later.
    WaitTooLong = 4,
    /// The caller cancelled the work.
    Cancelled = 5,
    /// There is no model, file, backend or device of this name.
    NotFound = 6,
    /// Memory does not suffice.
    OutOfMemory = 7,
    /// The device, or the thread that drives it, failed.
    DeviceFailed = 8,
    /// The model produced NaN.
    NotANumber = 9,
    /// The model produced a key or value that the type of the KV cache cannot hold.
    OutOfRange = 10,
    /// Any other error, such as a malformed file.
    Other = 11,
    /// An argument is null, not UTF-8, not JSON of the known form, or has a wrong size.
    InvalidArgument = 12,
    /// The handle was closed, or is none of this kind.
    InvalidHandle = 13,
    /// The buffer is too small; the needed number of elements was stored.
    BufferTooSmall = 14,
    /// Nothing has arrived within the given time.
    TimedOut = 15,
    /// A fault of girih, which was caught; the sentence has its message.
    Panicked = 16,
}

/// All codes, for their names.
const NAMES: [(Status, &CStr); 17] = [
    (Status::Ok, c"ok"),
    (Status::Refused, c"refused"),
    (Status::TooLong, c"too_long"),
    (Status::QueueFull, c"queue_full"),
    (Status::WaitTooLong, c"wait_too_long"),
    (Status::Cancelled, c"cancelled"),
    (Status::NotFound, c"not_found"),
    (Status::OutOfMemory, c"out_of_memory"),
    (Status::DeviceFailed, c"device_failed"),
    (Status::NotANumber, c"not_a_number"),
    (Status::OutOfRange, c"out_of_range"),
    (Status::Other, c"other"),
    (Status::InvalidArgument, c"invalid_argument"),
    (Status::InvalidHandle, c"invalid_handle"),
    (Status::BufferTooSmall, c"buffer_too_small"),
    (Status::TimedOut, c"timed_out"),
    (Status::Panicked, c"panicked"),
];

/// The name of a code, if there is one with this number.
pub fn name(code: i32) -> Option<&'static CStr> {
    NAMES.iter().find(|(status, _)| *status as i32 == code).map(|(_, name)| *name)
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The code that it returns.
    pub status: Status,
    /// The sentence for people.
    pub sentence: String,
}

impl Fault {
    /// A fault with a code and a sentence.
    pub fn new(status: Status, sentence: impl Into<String>) -> Fault {
        Fault { status, sentence: sentence.into() }
    }

    /// A fault of an argument.
    pub fn argument(sentence: impl Into<String>) -> Fault {
        Fault::new(Status::InvalidArgument, sentence)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let status = match error.kind() {
            ErrorKind::Refused => Status::Refused,
            ErrorKind::TooLong => Status::TooLong,
            ErrorKind::QueueFull => Status::QueueFull,
            ErrorKind::WaitTooLong => Status::WaitTooLong,
            ErrorKind::Cancelled => Status::Cancelled,
            ErrorKind::NotFound => Status::NotFound,
            ErrorKind::OutOfMemory => Status::OutOfMemory,
            ErrorKind::DeviceFailed => Status::DeviceFailed,
            ErrorKind::NotANumber => Status::NotANumber,
            ErrorKind::OutOfRange => Status::OutOfRange,
            _ => Status::Other,
        };
        Fault::new(status, error.to_string())
    }
}

/// A result of the library's own work.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

thread_local! {
    /// The sentence of this thread's last fault.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the sentence of a fault for [`last`].
pub fn keep(fault: &Fault) {
    // A thread that ends has none.
    let _ = LAST.try_with(|last| *last.borrow_mut() = c_text(&fault.sentence));
}

/// The sentence of this thread's last fault, empty before the first; it lies there until the thread's next fault.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A text for C; it ends at the first byte of zero, if there is one.
pub fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_name_and_its_number() {
        for (index, (status, text)) in NAMES.iter().enumerate() {
            assert_eq!(*status as usize, index);
            assert_eq!(name(index as i32), Some(*text));
        }
        assert_eq!((name(-1), name(17)), (None, None));
    }

    #[test]
    fn a_text_with_a_zero_byte_ends_there() {
        assert_eq!(c_text("a\0b").as_c_str(), c"a");
        assert_eq!(c_text("é").to_str(), Ok("é"));
    }
}
