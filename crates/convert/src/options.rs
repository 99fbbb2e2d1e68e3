//! What is asked of a conversion.

use std::num::NonZeroUsize;
use std::str::FromStr;

use girih_tensor::{Error, Result};
use girih_words::TextLimits;

use super::recipe::Recipe;
use super::types::{self, FileType};

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
    pub limits: TextLimits,
}
