//! The house rules that the compiler does not check.
//!
//! A rule is a function from the files of the repository to the faults it
//! finds. Each has a test beside it with a text that it catches and a text that
//! it lets pass. The whole list is also run as a test on the repository itself.

mod form;
mod manifests;
mod source;
mod text;
mod tree;
mod walls;

use std::fmt;

pub use tree::Tree;

/// Every rule, in the order in which the faults are printed.
pub const RULES: &[fn(&Tree) -> Vec<Fault>] = &[
    manifests::edges,         // crates depend on each other along the allowed edges only
    manifests::lints,         // each crate inherits the workspace's lints
    manifests::unused,        // each workspace dependency is used by some crate
    walls::unsafe_places,     // `unsafe` stands in listed places only
    walls::unsafe_reasons,    // each `unsafe` has its `SAFETY:` comment
    walls::unsafe_ban,        // each crate root forbids unsafe code, or denies it where a listed place lies
    walls::target_conditions, // `cfg(target_…)` stands in kernels and foreign interfaces only
    walls::environment,       // the environment is read by the command line crate only
    form::opening,            // each module opens with a `//!` sentence
    form::module_names,       // no module is called utils, common, helpers or misc
    form::lengths,            // functions and files are short; known exceptions only shrink
    form::unfinished,         // nothing is marked as unfinished
    text::white_space,        // no trailing white space, no tabs in Rust, a final newline
    text::machine_paths,      // no path of somebody's machine
    text::large_files,        // no file over a megabyte that is not listed
];

/// A broken rule, at a place.
#[derive(Debug)]
pub struct Fault {
    path: String,
    line: usize,
    sentence: String,
}

impl Fault {
    /// A fault in `path`; lines count from 1.
    fn new(path: &str, line: usize, sentence: impl Into<String>) -> Fault {
        Fault { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

/// What all rules find in `tree`.
pub fn faults(tree: &Tree) -> Vec<Fault> {
    RULES.iter().flat_map(|rule| rule(tree)).collect()
}

/// The places, as `path:line`, where `rule` finds faults in a tree of `files`.
#[cfg(test)]
fn places(rule: fn(&Tree) -> Vec<Fault>, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Tree::from_texts(files)).iter().map(|fault| format!("{}:{}", fault.path, fault.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_prints_its_place_first() {
        assert_eq!(Fault::new("a/b.rs", 3, "is wrong").to_string(), "a/b.rs:3: is wrong");
    }

    #[test]
    fn the_repository_is_tidy() {
        let root = crate::root();
        if !root.join(".git").exists() {
            eprintln!("skipped: the sources are not a git checkout, so there is no list of files");
            return;
        }
        let tree = Tree::from_git(&root).unwrap();
        assert!(tree.files.iter().any(|file| file.path == "Cargo.toml"), "git lists the root's files");
        let report: Vec<String> = faults(&tree).iter().map(Fault::to_string).collect();
        assert!(report.is_empty(), "{} faults:\n{}", report.len(), report.join("\n"));
    }
}
