//! The one place where a panic of the `tokenizers` crate becomes an error.
//!
//! The crate is known to panic on odd files and texts. What it is given is
//! checked first, so that a panic here is a fault that no one has met before;
//! it must still not take down a server that holds other people's requests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use girih_tensor::{Error, Result};

/// Runs `call`; a panic in it is an error that names `what` was being done.
///
/// The library's values are only read by `call`, and its cache ignores a
/// poisoned lock, so that nothing half-written is seen afterwards.
pub(super) fn guard<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(Error::new(format!("the tokenizer library failed while {what}: {said}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let result: Result<()> = guard("encoding a text", || panic!("index {} of 3", 7));
        let sentence = result.expect_err("it panicked").to_string();
        assert_eq!(sentence, "the tokenizer library failed while encoding a text: index 7 of 3");
    }
}
