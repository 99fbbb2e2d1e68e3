//! The rules of STYLE.md and ARCHITECTURE.md that neither the compiler nor
//! clippy checks.
//!
//! A rule is a function from the files of the repository to the faults it
//! finds. Each has a test beside it, with a text that it rejects and a text
//! that it accepts. A test runs the whole list on the repository itself.

mod cycles;
mod examples;
mod fault;
mod form;
mod links;
mod manifests;
mod names;
mod source;
mod text;
mod tree;
mod walls;

pub use fault::Fault;
pub use tree::Tree;

/// Every rule, in the order in which the faults are printed.
pub const RULES: &[fn(&Tree) -> Vec<Fault>] = &[
    manifests::edges,         // crates depend on each other along the allowed edges only
    manifests::package_names, // each crate is called like its folder
    manifests::lints,         // each crate inherits the workspace's lints
    manifests::unused,        // each workspace dependency is used by some crate
    cycles::cycles,           // within a crate, files depend on each other in one direction
    walls::unsafe_places,     // `unsafe` stands in listed places only
    walls::unsafe_ban,        // each crate root forbids unsafe code, or denies it where a listed place lies
    walls::target_conditions, // `cfg(target_…)` stands in kernels and foreign interfaces only
    walls::environment,       // the environment is read by the command line crate only
    walls::opened_files,      // files are opened by one function, except in listed places
    walls::backends,          // backends are named by the crate girih and listed files only
    form::opening,            // each module opens with a `//!` sentence
    form::module_names,       // no module is called utils, common, helpers or misc
    names::unique_types,      // a type's name means one thing in the workspace
    examples::examples,       // each public item of the library has an example
    form::lengths,            // files are short
    links::links,             // each relative link and picture of a document is there
    form::unfinished,         // no comment marks something as unfinished
    text::plain_words,        // no phrase that the style guide bans
    text::white_space,        // no trailing white space, no tabs in Rust, a final newline
    text::machine_paths,      // no path of somebody's machine
    text::large_files,        // no file over a megabyte that is not listed
];

/// What all rules find in `tree`.
pub fn faults(tree: &Tree) -> Vec<Fault> {
    RULES.iter().flat_map(|rule| rule(tree)).collect()
}

/// Where `rule` finds faults in a tree of `files`, as `path:line`.
#[cfg(test)]
fn places(rule: fn(&Tree) -> Vec<Fault>, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Tree::from_texts(files)).iter().map(|fault| format!("{}:{}", fault.path, fault.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
