//! Sweeps: how many steps of keys each batch of queries of an attention takes.

use std::fmt;

use girih_tensor::Result;

use super::read::FormLine;

/// Iterations of the second loop of a launch, one after another, in which the third loop
/// has the same number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The number of these iterations.
    pub times: u32,
    /// The index of the third loop's dimension at which the first of them begins.
    pub first: u32,
    /// What each further one adds to that index.
    pub step: u32,
    /// The number of iterations of the third loop in each.
    pub count: u32,
}

impl Sweep {
    /// The first index of the third loop's dimension in each of the iterations.
    pub fn firsts(self) -> impl Iterator<Item = u32> {
        (0..self.times).map(move |time| self.first.saturating_add(self.step.saturating_mul(time)))
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sweep { times, first, step, count } = self;
        write!(f, "times {times} first {first} step {step} count {count}")
    }
}

/// Reads a sweep to the end of its line.
pub(super) fn sweep(mut line: FormLine<'_>) -> Result<Sweep> {
    let mut number = |name: &str| {
        line.need(name)?;
        line.value("a number of iterations")
    };
    let (times, first) = (number("times")?, number("first")?);
    let sweep = Sweep { times, first, step: number("step")?, count: number("count")? };
    line.end()?;
    Ok(sweep)
}
