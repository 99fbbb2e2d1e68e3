//! The progress and the result of a conversion.

use std::path::PathBuf;

use girih_tensor::{DType, Shape};

use super::prune::Sparsity;

/// The progress of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct ConvertProgress<'a> {
    /// The tensor in progress.
    pub tensor: &'a str,
    /// The number of weights written.
    pub done: u64,
    /// The number of weights of the whole model.
    pub total: u64,
}

/// The result of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertReport {
    /// The file of the weights.
    pub weights: PathBuf,
    /// Further files with parts of weights.
    pub others: Vec<PathBuf>,
    /// The tensors in the order of writing.
    pub tensors: Vec<WrittenTensor>,
    /// Differences from the source other than the rounding of weights.
    pub warnings: Vec<String>,
}

/// A written tensor.
#[derive(Clone, Debug)]
pub struct WrittenTensor {
    /// Its name in the file.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Shape,
    /// The format in the source.
    pub source: DType,
    /// The format in the output.
    pub stored: DType,
    /// The reason if the format differs from that of the file's type.
    pub note: Option<String>,
    /// What is left of it, if a recipe prunes it.
    pub sparsity: Option<Sparsity>,
}
