//! The bound on the work of one validation, and why a validation ends.

/// The maximum work for one reply, in units of some 10 ns.
const MAX_WORK: u64 = 10_000_000;

/// The work of one visit of a subschema.
pub(super) const VISIT: u64 = 20;

/// The work that is left.
pub(super) struct Work(u64);

/// The work is used up, or the value has something that cannot be decided.
#[derive(Debug)]
pub(super) struct Stopped(pub &'static str);

/// A part of the value that violates a keyword.
#[derive(Debug, Default)]
pub(super) struct ValueFault {
    /// The names and indices that lead to the part, innermost first.
    path: Vec<String>,
    reason: String,
}

/// Why a value was not found valid.
#[derive(Debug)]
pub(super) enum Failure {
    Fault(ValueFault),
    Stopped(Stopped),
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Failure {
        Failure::Stopped(stopped)
    }
}

impl ValueFault {
    /// A fault of the value itself.
    pub fn new(reason: String) -> ValueFault {
        ValueFault { path: Vec::new(), reason }
    }

    /// The same fault of a value that has this one as a part.
    pub fn within(mut self, part: String) -> ValueFault {
        self.path.push(part);
        self
    }

    /// The path as a JSON pointer (RFC 6901) and the reason.
    pub fn sentence(&self) -> String {
        let step = |part: &String| format!("/{}", part.replace('~', "~0").replace('/', "~1"));
        let path: String = self.path.iter().rev().map(step).collect();
        if path.is_empty() { self.reason.clone() } else { format!("{path}: {}", self.reason) }
    }
}

impl Work {
    /// The work for one reply.
    pub fn of_reply() -> Work {
        Work(MAX_WORK)
    }

    /// Takes some of the work.
    pub fn spend(&mut self, units: u64) -> Result<(), Stopped> {
        self.0 = self.0.checked_sub(units).ok_or_else(too_much)?;
        Ok(())
    }
}

/// The refusal of a value that takes too much work.
pub(super) fn too_much() -> Stopped {
    Stopped(
        "the finished reply is too large or nested too deeply for the schema's choices to be checked: bound \
         its size and depth",
    )
}
