//! The rule about the library's documentation: each public item has an example,
//! which the tests run.

use std::collections::BTreeSet;

use super::fault::Fault;
use super::tree::Tree;

/// The sources of the library.
const LIBRARY: &str = "crates/girih/src/";

/// What opens a public item that needs an example.
const ITEMS: [&str; 6] = ["pub fn ", "pub struct ", "pub enum ", "pub trait ", "pub const ", "pub type "];

/// Each public type, function and method of the library has an example in its
/// documentation. Methods of types that are not public do not count.
pub fn examples(tree: &Tree) -> Vec<Fault> {
    let files = tree.files.iter().filter(|file| file.path.starts_with(LIBRARY));
    let texts: Vec<(&str, &str)> =
        files.filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?))).collect();
    let public: BTreeSet<&str> =
        texts.iter().flat_map(|(_, text)| text.lines().filter_map(public_type)).collect();
    let mut faults = Vec::new();
    for (path, text) in texts {
        let (mut has_example, mut is_public) = (false, true);
        for (index, line) in text.lines().enumerate() {
            let item = line.trim_start();
            if !line.starts_with([' ', '}']) && !item.is_empty() {
                is_public = implemented(line).is_none_or(|name| public.contains(name));
            }
            if item.starts_with("///") {
                has_example |= item.contains("```");
            } else if !item.starts_with("#[") {
                if is_public && !has_example && ITEMS.iter().any(|opening| item.starts_with(opening)) {
                    let sentence =
                        "a public item of the library has no example: add one to its documentation";
                    faults.push(Fault::new(path, index + 1, sentence));
                }
                has_example = false;
            }
        }
    }
    faults
}

/// The name of the public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let types = ["pub struct ", "pub enum ", "pub trait "];
    types.iter().find_map(|opening| line.strip_prefix(opening)).map(name)
}

/// The name of the type whose methods a line opens.
fn implemented(line: &str) -> Option<&str> {
    line.strip_prefix("impl ").map(name)
}

/// The name at the beginning of a text.
fn name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn public_items_of_the_library_have_examples() {
        let good = "/// A thing.\n///\n/// ```\n/// a();\n/// ```\n#[derive(Debug)]\npub struct A;\n\
                    impl A {\n    /// ```\n    /// ```\n    pub fn a() {}\n}\n\
                    /// Not public.\npub(crate) struct B;\nimpl B {\n    /// Not public.\n    pub fn b() {}\n}\n\
                    fn c() {}\n";
        assert!(places(examples, &[("crates/girih/src/a.rs", good)]).is_empty());
        let bad = "/// A thing.\npub struct A;\n\nimpl A {\n    /// A method.\n    pub fn a() {}\n}\n\n\
                   /// A function.\npub fn b() {}\n";
        let lines = ["crates/girih/src/a.rs:2", "crates/girih/src/a.rs:6", "crates/girih/src/a.rs:10"];
        assert_eq!(places(examples, &[("crates/girih/src/a.rs", bad)]), lines);
        assert!(places(examples, &[("crates/graph/src/a.rs", bad)]).is_empty());
    }
}
