//! Memory for samples, which may be missing.

use girih_tensor::Result;

use crate::limits::refused;

/// `len` zeros, or an error where memory does not suffice.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| refused(format!("there is no memory for an image of {len} bytes")))?;
    bytes.resize(len, 0);
    Ok(bytes)
}
