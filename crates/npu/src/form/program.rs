//! Programs between two passes: launches that are tiled, placed or routed.

use std::fmt;

use super::schedule::Argument;
use super::schedule::text::print_arguments;
use super::{FormFault, PassForm};
use crate::target::Target;

/// A program between two passes.
#[derive(Clone, Debug, PartialEq)]
pub struct FormProgram<L> {
    /// The program's name.
    pub name: String,
    /// The buffers that the host binds.
    pub arguments: Vec<Argument>,
    /// The launches, in order.
    pub launches: Vec<L>,
}

/// A launch between two passes.
pub trait FormLaunch: fmt::Display {
    /// The name of the form in dumps.
    const NAME: &'static str;
    /// Returns every rule that the launch breaks on a target, in a program with these arguments.
    fn faults(&self, arguments: &[Argument], target: &Target) -> Vec<FormFault>;
}

impl<L: FormLaunch> PassForm for FormProgram<L> {
    const NAME: &'static str = L::NAME;

    fn faults(&self, target: &Target) -> Vec<FormFault> {
        self.launches.iter().flat_map(|launch| launch.faults(&self.arguments, target)).collect()
    }
}

impl<L: FormLaunch> fmt::Display for FormProgram<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", L::NAME, self.name)?;
        print_arguments(&self.arguments, f)?;
        self.launches.iter().try_for_each(|launch| write!(f, "{launch}"))
    }
}
