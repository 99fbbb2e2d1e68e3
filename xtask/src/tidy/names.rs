//! The rule about names: a type's name means one thing in the workspace.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::source::leading_name;
use super::tree::Tree;

/// Names that several files may define, each with the reason.
const SHARED: &[(&str, &str)] = &[
    ("Args", "the command-line arguments of each command"),
    ("Error", "a crate's error; that of the command line also has an exit code"),
    ("Result", "a result with the crate's error"),
    ("StateTensor", "a backend's storage of one state value"),
];

/// The keywords that define a type.
const DEFINING: [&str; 4] = ["struct", "enum", "trait", "union"];

/// A struct, enum or trait of a crate has a name that no other file defines, outside tests. xtask is no part of the
/// product and may use such names again.
pub fn unique_types(tree: &Tree) -> Vec<Fault> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (file, source) in tree.rust().filter(|(file, _)| file.path.starts_with("crates/") && !file.is_test())
    {
        for keyword in DEFINING {
            for at in source.words(keyword).filter(|&at| begins_an_item(&source.code[..at])) {
                let line = source.line(at);
                let name = leading_name(&source.code[at + keyword.len()..]);
                let is_shared = SHARED.iter().any(|(shared, _)| *shared == name);
                if !name.is_empty() && !is_shared && !source.is_test(line) {
                    places.entry(name).or_default().push((&file.path, line));
                }
            }
        }
    }
    let several =
        places.into_iter().filter(|(_, places)| places.iter().any(|(path, _)| *path != places[0].0));
    several
        .flat_map(|(name, places)| {
            let first = places[0].0;
            let others = places.into_iter().filter(move |(path, _)| *path != first);
            others.map(move |(path, line)| {
                let sentence =
                    format!("{first} also has a type called {name}: give one a name that says whose it is");
                Fault::new(path, line, sentence)
            })
        })
        .collect()
}

/// Whether an item can begin after `code`: at a line's first token, or after its visibility.
fn begins_an_item(code: &str) -> bool {
    let line = code.rsplit('\n').next().unwrap_or_default().trim();
    line.is_empty() || (line.starts_with("pub") && (line == "pub" || line.ends_with(')')))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_name_of_two_types_is_a_fault_of_the_second() {
        let one = ("crates/a/src/one.rs", "//! A.\npub struct Place;\n");
        for bad in ["//! B.\n\nenum Place {}\n", "//! B.\n\npub(crate) trait Place {}\n"] {
            let found = places(unique_types, &[one, ("crates/b/src/two.rs", bad)]);
            assert_eq!(found, ["crates/b/src/two.rs:3"], "{bad}");
        }
        for good in ["//! B.\nuse a::Place;\n", "//! B.\nfn place(x: Place) {}\n", "//! struct Place\n"] {
            assert!(places(unique_types, &[one, ("crates/b/src/two.rs", good)]).is_empty(), "{good}");
        }
        assert!(
            places(unique_types, &[one, ("crates/b/tests/it/two.rs", "//! B.\nstruct Place;\n")]).is_empty()
        );
    }
}
