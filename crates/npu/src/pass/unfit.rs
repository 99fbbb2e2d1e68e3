//! The error of a program that needs more than the target has.

use std::fmt;

use girih_tensor::Error;

/// A pass could not meet a limit of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The pass.
    pub pass: &'static str,
    /// The program and the launch.
    pub group: String,
    /// The resource that is too small.
    pub resource: String,
    /// The amount that is needed.
    pub need: u64,
    /// The amount that the target has.
    pub have: u64,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfit { pass, group, resource, need, have } = self;
        write!(f, "{pass}: {group} needs {need} {resource}; the target has {have}")
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Error {
        Error::new(unfit.to_string())
    }
}
