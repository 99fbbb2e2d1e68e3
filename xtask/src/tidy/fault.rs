//! The faults that rules report.

use std::fmt;

/// A broken rule in one line of a file.
#[derive(Debug)]
pub struct Fault {
    pub path: String,
    pub line: usize,
    sentence: String,
}

impl Fault {
    /// A fault in `path`; lines count from 1.
    pub fn new(path: &str, line: usize, sentence: impl Into<String>) -> Fault {
        Fault { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_prints_its_place_first() {
        assert_eq!(Fault::new("a/b.rs", 3, "is wrong").to_string(), "a/b.rs:3: is wrong");
    }
}
