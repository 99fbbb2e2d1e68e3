//! The options of a conversion.

use std::num::NonZeroUsize;
use std::str::FromStr;

use girih_tensor::{Error, Result};
use girih_words::TextLimits;

use super::recipe::Recipe;
use super::types::{self, FileType};

/// The output of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTarget {
    /// One GGUF file.
    Gguf(FileType),
    /// A folder in the hub's layout whose matrices are Q4NX.
    Q4nx,
}

impl FromStr for ConvertTarget {
    type Err = Error;

    /// Parses `q4nx` or the name of a [`FileType`], in any case.
    fn from_str(text: &str) -> Result<ConvertTarget> {
        if text.eq_ignore_ascii_case("q4nx") {
            return Ok(ConvertTarget::Q4nx);
        }
        types::parse(text)
            .map(ConvertTarget::Gguf)
            .ok_or_else(|| Error::new(format!("unknown file type '{text}'; known: {}, q4nx", types::names())))
    }
}

/// The options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// The output.
    pub target: ConvertTarget,
    /// The storage formats of single tensors.
    pub recipe: Option<Recipe>,
    /// The model's name in a GGUF file; by default that of its folder or file.
    pub name: Option<String>,
    /// The number of threads (does not affect the bytes).
    pub threads: NonZeroUsize,
    /// The caps on the tokenizer's files.
    pub limits: TextLimits,
}
