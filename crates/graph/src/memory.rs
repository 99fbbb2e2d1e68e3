//! Allocates values of a graph; too little memory is an error, not an abort.

use girih_tensor::Error;

/// Returns `count` zeros for the value of this name; `None` stands for a count
/// that overflowed.
pub(crate) fn zeroed<T: Clone + Default>(name: &str, count: Option<usize>) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let room = count.filter(|&count| zeros.try_reserve_exact(count).is_ok());
    zeros.resize(room.ok_or_else(|| Error::new(format!("not enough memory for '{name}'")))?, T::default());
    Ok(zeros)
}
