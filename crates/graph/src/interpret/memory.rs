//! Memory of sizes that a graph states: an error where the system has too little.

use girih_tensor::Error;

/// Zeros for the value of this name; `None` is a count that overflowed.
pub(super) fn zeroed<T: Clone + Default>(name: &str, count: Option<usize>) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let room = count.filter(|&count| zeros.try_reserve_exact(count).is_ok());
    zeros.resize(room.ok_or_else(|| Error::new(format!("memory is short for '{name}'")))?, T::default());
    Ok(zeros)
}
