//! The intermediate forms between the passes. Each can be printed and checked; groups and schedules, the
//! first and the last, can also be parsed.

pub mod groups;
mod kernel;
mod keys;
pub mod placed;
pub mod program;
pub mod read;
pub mod routed;
pub mod schedule;
pub mod tiled;
pub mod tiling;
pub mod weights;

use std::fmt;

use crate::target::Target;

/// A form between two passes.
pub trait PassForm: fmt::Display {
    /// The name in dumps.
    const NAME: &'static str;
    /// Returns every rule that the form breaks on this target. A fault is a bug
    /// of girih, not an error of the user.
    fn faults(&self, target: &Target) -> Vec<FormFault>;
}

/// A broken rule of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormFault {
    /// The part at fault: `gemm: descriptor 3 of tile 0,2`.
    pub part: String,
    /// One sentence: what was found and what was needed.
    pub sentence: String,
}

impl FormFault {
    /// Creates a fault of a part.
    pub fn new(part: impl Into<String>, sentence: impl Into<String>) -> FormFault {
        FormFault { part: part.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for FormFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.part, self.sentence)
    }
}
