//! Texts that the caller frees: a table owns them, so that to free one twice, or what is none, is refused.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::status::{Fault, Result, Status, c_text};

/// The texts that callers have, by address.
static TEXTS: LazyLock<Mutex<BTreeMap<usize, CString>>> = LazyLock::new(Mutex::default);

/// Gives a text to the caller.
pub fn give(text: &str) -> *mut c_char {
    let text = c_text(text);
    let address = text.as_ptr().cast_mut();
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner).insert(address.addr(), text);
    address
}

/// Frees the text at an address.
///
/// # Errors
/// When no text that a caller has begins there.
pub fn free(address: usize) -> Result<()> {
    let removed = TEXTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    let sentence = "the text was freed, or is none that girih returned: free each once";
    removed.map(drop).ok_or_else(|| Fault::new(Status::InvalidHandle, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_freed_once() {
        let text = give("a cat");
        assert!(free(text.addr()).is_ok());
        assert_eq!(free(text.addr()).unwrap_err().status, Status::InvalidHandle);
        assert_eq!(free(1).unwrap_err().status, Status::InvalidHandle);
    }
}
