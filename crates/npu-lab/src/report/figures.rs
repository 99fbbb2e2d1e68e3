//! The figures of a target and its kernels, with grades and sources.

use girih_npu::target::{Figure, Grade};
use serde::Serialize;

/// A figure of a target or a kernel, with its grade and source.
#[derive(Clone, Debug, Serialize)]
pub struct SourcedFigure {
    /// Its key in the file: `dram.bytes_per_second`, `gemm_bf16.step`.
    pub path: String,
    /// The value as written in the file.
    pub value: String,
    /// How reliable it is.
    pub grade: String,
    /// The publication, or the reason for the guess.
    pub source: String,
}

impl From<&Figure> for SourcedFigure {
    fn from(figure: &Figure) -> SourcedFigure {
        let Figure { path, value, grade, source } = figure.clone();
        SourcedFigure { path, value, grade: grade.to_string(), source }
    }
}

/// The number of figures of each grade, from measured to guessed.
pub fn grades(figures: &[SourcedFigure]) -> Vec<(&'static str, usize)> {
    let all = [Grade::Measured, Grade::Documented, Grade::Derived, Grade::Guessed];
    let names = ["measured", "documented", "derived", "guessed"];
    let count = |grade: &Grade| figures.iter().filter(|figure| figure.grade == grade.to_string()).count();
    names.into_iter().zip(all.iter().map(count)).collect()
}
