//! The rules that only a run can see broken.

use std::fmt;

use girih_tensor::Error;

use super::time::Cycle;

/// Why a run did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFault {
    /// What kind of rule was broken.
    pub kind: FaultKind,
    /// When, counted from the beginning of its launch.
    pub cycle: Cycle,
    /// Launch, tile, buffer or lock, and what happened.
    pub sentence: String,
}

/// The rules that only a run can see broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Two accesses of one word, one of them a write, that nothing orders.
    Race,
    /// A word is read that nobody has written in its launch.
    Unwritten,
    /// Somebody waits for what cannot come.
    Deadlock,
    /// A lock counts too far, or an address lies outside of its buffer.
    Overrun,
    /// The launch ends while a transfer is under way or has not begun.
    Unfinished,
    /// The schedule is malformed or cannot be bound.
    Malformed,
}

impl fmt::Display for SimFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at cycle {}: {}", self.kind, self.cycle, self.sentence)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::Race => "race",
            FaultKind::Unwritten => "unwritten memory",
            FaultKind::Deadlock => "deadlock",
            FaultKind::Overrun => "overrun",
            FaultKind::Unfinished => "unfinished transfer",
            FaultKind::Malformed => "malformed schedule",
        })
    }
}

impl From<SimFault> for Error {
    fn from(fault: SimFault) -> Error {
        Error::new(fault.to_string())
    }
}
