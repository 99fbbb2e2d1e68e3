//! Writes a model again, in another container or other storage formats.
//!
//! A GGUF file follows llama.cpp's names, order of rows and mixes of types, so
//! that llama.cpp reads it, too. A Q4NX folder is the model's own folder with
//! packed matrices. Tensors are read, packed and written band by band; a model
//! is never in memory as a whole, and the same model gives the same bytes.

mod gguf;
mod keys;
mod plan;
mod q4nx;
mod recipe;
mod stream;
mod types;
mod vocabulary;

use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;

use girih_graph::{Key, Variant};
use girih_tensor::{DType, Shape};

pub use recipe::Recipe;
pub use types::FileType;

use crate::{Error, Limits, Model, Result};

/// What is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One GGUF file.
    Gguf(FileType),
    /// A folder in the hub's layout whose matrices are Q4NX.
    Q4nx,
}

impl FromStr for Target {
    type Err = Error;

    /// Reads `q4nx` or the name of a [`FileType`], in any case.
    fn from_str(text: &str) -> Result<Target> {
        if text.eq_ignore_ascii_case("q4nx") {
            return Ok(Target::Q4nx);
        }
        types::parse(text).map(Target::Gguf).ok_or_else(|| {
            Error::new(format!("'{text}' is no type of file; known are {}, q4nx", types::names()))
        })
    }
}

/// How a model is to be written.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is to be written.
    pub target: Target,
    /// Storage formats of single tensors.
    pub recipe: Option<Recipe>,
    /// The model's name in a GGUF file; that of its folder or file if not given.
    pub name: Option<String>,
    /// Threads that pack at a time; the bytes do not depend on it.
    pub threads: NonZeroUsize,
    /// Caps on the files that are read beside the weights.
    pub limits: Limits,
}

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

/// Writes `model` to `out`: a file for GGUF, a folder for Q4NX.
///
/// # Errors
/// When `out` is there already; when the container has no place for something
/// that the model needs (the sentence names it); when a weight is not finite,
/// or not finite any more in its new format; when a recipe does not fit the
/// model; or when a file cannot be read or written.
pub fn convert(
    model: &Model,
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report> {
    if out.symlink_metadata().is_ok() {
        return Err(Error::new("is there already; name another place, or remove it").of(out.display()));
    }
    // The graph's builder checks the shape of every weight against the facts.
    let smallest = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, variant: Variant::GENERATE };
    model.graph(smallest, DType::F32)?;
    match options.target {
        Target::Gguf(file_type) => gguf::write(model, out, file_type, options, progress),
        Target::Q4nx => q4nx::write(model, out, options, progress),
    }
}
