//! The options of a conversion.

use std::num::NonZeroUsize;
use std::str::FromStr;

use girih_tensor::{Error, Result};
use girih_words::TextLimits;

use super::q4_map::Q4Map;
use super::recipe::Recipe;
use super::types::{self, FileType};

/// The output of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTarget {
    /// One GGUF file.
    Gguf(FileType),
    /// A folder with FastFlowLM's `model.q4nx`, whose matrices are Q4NX.
    Q4nx,
    /// A folder in the hub's layout, in which the matrices that a recipe prunes have no blocks of zeros.
    Safetensors,
    /// A folder of IEBIN.
    Iebin,
}

impl FromStr for ConvertTarget {
    type Err = Error;

    /// Parses `q4nx`, `safetensors`, `iebin` or the name of a [`FileType`], in any case.
    fn from_str(text: &str) -> Result<ConvertTarget> {
        if text.eq_ignore_ascii_case("q4nx") {
            return Ok(ConvertTarget::Q4nx);
        }
        if text.eq_ignore_ascii_case("safetensors") {
            return Ok(ConvertTarget::Safetensors);
        }
        if text.eq_ignore_ascii_case("iebin") {
            return Ok(ConvertTarget::Iebin);
        }
        types::parse(text).map(ConvertTarget::Gguf).ok_or_else(|| {
            Error::new(format!(
                "unknown file type '{text}'; known: {}, q4nx, safetensors, iebin",
                types::names()
            ))
        })
    }
}

/// The options of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// The output.
    pub target: ConvertTarget,
    /// The storage formats of single tensors.
    pub recipe: Option<Recipe>,
    /// What is particular to a folder of IEBIN.
    pub iebin: IebinOptions,
    /// The model's name in a GGUF file; by default that of its folder or file.
    pub name: Option<String>,
    /// The number of threads (does not affect the bytes).
    pub threads: NonZeroUsize,
    /// The caps on the tokenizer's files.
    pub limits: TextLimits,
}

/// What is particular to a folder of IEBIN.
#[derive(Clone, Debug, Default)]
pub struct IebinOptions {
    /// The matrices to store as integers of four bits.
    pub q4_map: Option<Q4Map>,
    /// Whether all other tensors are widened to single precision, as programs need that read only this.
    pub single_precision: bool,
    /// What becomes of tensors that are near-equal; by default they are stored like others.
    pub dedup: Option<Dedup>,
}

/// How a folder of IEBIN stores tensors that are near-equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// As their differences to one of them.
    Overlay,
}

impl FromStr for Dedup {
    type Err = Error;

    /// Parses `overlay`.
    fn from_str(text: &str) -> Result<Dedup> {
        match text {
            "overlay" => Ok(Dedup::Overlay),
            _ => Err(Error::new(format!("unknown deduplication '{text}'; known: overlay"))),
        }
    }
}
