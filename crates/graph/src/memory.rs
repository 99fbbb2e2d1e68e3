//! Allocates values of a graph; too little memory is an error, not an abort.

use girih_tensor::{Error, ErrorKind};

/// Returns `count` zeros for the value of this name; `None` stands for a count
/// that overflowed.
pub(crate) fn zeroed<T: Clone + Default>(name: &str, count: Option<usize>) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let room = count.filter(|&count| zeros.try_reserve_exact(count).is_ok());
    let short = || {
        let sentence = match count.and_then(|count| count.checked_mul(size_of::<T>())) {
            Some(bytes) => format!("cannot allocate {bytes} bytes for '{name}'"),
            None => format!("'{name}' exceeds the address space"),
        };
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    };
    zeros.resize(room.ok_or_else(short)?, T::default());
    Ok(zeros)
}
