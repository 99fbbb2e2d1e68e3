//! The forms between the passes: each can be printed, parsed and checked.

pub mod read;
pub mod schedule;

use std::fmt;

/// A rule that a form breaks, at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is at fault: `gemm: descriptor 3 of tile 0,2`.
    pub place: String,
    /// One sentence: what was found and what was needed.
    pub sentence: String,
}

impl Fault {
    /// A fault at `place`.
    pub fn new(place: impl Into<String>, sentence: impl Into<String>) -> Fault {
        Fault { place: place.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.sentence)
    }
}
