//! The error of a program that needs more than the target has.

use std::fmt;

use girih_tensor::Error;

/// A pass could not meet a limit of the target: news for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The pass.
    pub pass: &'static str,
    /// The program and launch that it was about.
    pub group: String,
    /// What ran out.
    pub resource: String,
    /// How much is needed.
    pub need: u64,
    /// How much there is.
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
