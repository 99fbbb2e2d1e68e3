//! The forms between the passes: each can be printed, parsed and checked.

pub mod groups;
pub mod placed;
pub mod read;
pub mod routed;
pub mod schedule;
pub mod tiled;
pub mod tiling;

use std::fmt;
use std::str::FromStr;

use girih_tensor::Error;

use crate::target::Target;

/// A form between two passes.
pub trait PassForm: fmt::Display + FromStr<Err = Error> {
    /// Its name in dumps.
    const NAME: &'static str;
    /// Every rule that it breaks on this target; a fault is girih's, not the
    /// user's.
    fn faults(&self, target: &Target) -> Vec<FormFault>;
}

/// A rule that a form breaks, at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormFault {
    /// What is at fault: `gemm: descriptor 3 of tile 0,2`.
    pub place: String,
    /// One sentence: what was found and what was needed.
    pub sentence: String,
}

impl FormFault {
    /// A fault at `place`.
    pub fn new(place: impl Into<String>, sentence: impl Into<String>) -> FormFault {
        FormFault { place: place.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for FormFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.sentence)
    }
}
