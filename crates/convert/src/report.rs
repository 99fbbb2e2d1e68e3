//! What a conversion reports: how far it is, and what it wrote.

use girih_tensor::{DType, Shape};

/// How far the writing is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tensor at work.
    pub tensor: &'a str,
    /// Weights that are written.
    pub done: u64,
    /// Weights of the whole model.
    pub total: u64,
}

/// What was written.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The tensors in the order of their writing.
    pub tensors: Vec<Written>,
    /// What differs from the source beyond the rounding of weights.
    pub warnings: Vec<String>,
}

/// One tensor that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its name in the file.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Shape,
    /// How the source stores it.
    pub source: DType,
    /// How it is stored now.
    pub stored: DType,
    /// Why it is stored otherwise than the type of the file says.
    pub note: Option<String>,
}
