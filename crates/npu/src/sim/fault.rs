//! Faults that only a run can detect.

use std::fmt;

use girih_tensor::Error;

use super::time::Cycle;

/// A fault that stopped a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFault {
    /// The broken rule.
    pub kind: FaultKind,
    /// The cycle of the fault, counted from the start of its launch.
    pub cycle: Cycle,
    /// The launch, tile, buffer or lock concerned, and what happened.
    pub sentence: String,
}

/// The rules that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Two unordered accesses to one word, at least one of them a write.
    Race,
    /// A word is read before it is written in its launch.
    Unwritten,
    /// An agent waits for an event that cannot happen.
    Deadlock,
    /// A lock exceeds its maximum, or an address lies outside its buffer.
    Overrun,
    /// The launch ends while a transfer is running or has not started.
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
