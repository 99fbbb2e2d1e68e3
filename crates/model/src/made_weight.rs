//! Weights that are made of something else than a model's tensors.

use std::fmt;

use girih_tensor::{DType, Result, Shape};

/// Such a weight. Its debug form is a part of the identity of a model's weights.
pub(crate) trait MadeWeight: fmt::Debug + Send + Sync {
    /// The format in which it is read, and its shape.
    fn info(&self) -> (DType, Shape);

    /// Fills `into` with its bytes from `offset` on.
    ///
    /// # Errors
    /// When a file cannot be read, or a number exceeds the format.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Checks that its files have not changed since they were opened.
    ///
    /// # Errors
    /// When one was changed meanwhile.
    fn check_unchanged(&self) -> Result<()>;
}
