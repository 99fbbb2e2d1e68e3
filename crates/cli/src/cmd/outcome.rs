//! The two ways in which a command ends without an error.

/// How a command ended after doing its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// The answer is no: exit code 1.
    Failed,
}
