//! Rules about the form of Rust files: names, lengths, openings.

use super::fault::Fault;
use super::source::leading_name;
use super::tree::File;
use super::tree::Tree;

const MAX_FILE_LINES: usize = 800;

/// Each module opens with a sentence that says what it is for.
pub fn opening(tree: &Tree) -> Vec<Fault> {
    let opens = |file: &File| {
        let line = file.text.as_deref()?.lines().next()?;
        Some(!line.strip_prefix("//!")?.trim().is_empty())
    };
    let sentence = "the module does not open with a `//!` sentence that says what it is for";
    let closed = tree.rust().filter(|(file, _)| opens(file) != Some(true));
    closed.map(|(file, _)| Fault::new(&file.path, 1, sentence)).collect()
}

/// No module has a catch-all name.
pub fn module_names(tree: &Tree) -> Vec<Fault> {
    const NAMELESS: [&str; 4] = ["utils", "common", "helpers", "misc"];
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        for at in source.words("mod") {
            let name = leading_name(&source.code[at + 3..]);
            if NAMELESS.contains(&name) {
                let sentence = format!("a module called {name} says nothing: name its contents");
                faults.push(Fault::new(&file.path, source.line(at), sentence));
            }
        }
    }
    faults
}

/// No comment on the main branch marks something as unfinished. Clippy finds
/// the macros that do.
pub fn unfinished(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        for (index, comment) in source.comments.lines().enumerate() {
            let mark = ["FIXME", "HACK", "TODO"].into_iter().find(|mark| comment.contains(mark));
            faults.extend(mark.map(|mark| Fault::new(&file.path, index + 1, format!("{mark} is left in"))));
        }
    }
    faults
}

/// Files other than tests are short. Clippy checks the lengths of functions.
pub fn lengths(tree: &Tree) -> Vec<Fault> {
    let files = tree.rust().filter(|(file, _)| !file.is_test());
    let lines = files.map(|(file, _)| (file, file.text.as_deref().unwrap_or_default().lines().count()));
    let long = lines.filter(|(_, lines)| *lines > MAX_FILE_LINES);
    long.map(|(file, lines)| {
        let sentence = format!("the file has {lines} lines, at most {MAX_FILE_LINES} are allowed: split it");
        Fault::new(&file.path, 1, sentence)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const PATH: &str = "crates/cpu/src/a.rs";

    #[test]
    fn a_module_opens_with_a_sentence() {
        for bad in ["", "use a;\n//! Late.\n", "//!\n", "// A comment.\n", "\n//! Late.\n"] {
            assert_eq!(places(opening, &[(PATH, bad)]), [format!("{PATH}:1")], "{bad:?}");
        }
        for good in ["//! What it is for.\n", "//! `girih run`: one command.\n"] {
            assert!(places(opening, &[(PATH, good)]).is_empty(), "{good}");
        }
    }

    #[test]
    fn a_module_has_a_name_that_says_something() {
        assert_eq!(places(module_names, &[(PATH, "//! A.\npub mod utils;\nmod misc {}\n")]).len(), 2);
        assert!(places(module_names, &[(PATH, "// mod utils;\nmod common_prefix;\n")]).is_empty());
    }

    #[test]
    fn a_mark_of_unfinished_code_is_a_fault() {
        assert_eq!(places(unfinished, &[(PATH, "//! A.\n// FIXME: c\nfn d() {} // HACK\n")]).len(), 2);
        assert!(places(unfinished, &[(PATH, "//! A.\nconst A: &str = \"FIXME\";\n")]).is_empty());
    }

    #[test]
    fn a_long_file_is_a_fault_and_a_long_test_is_none() {
        let file = |lines: usize| format!("//! A.\n{}", "const A: u8 = 1;\n".repeat(lines - 1));
        assert_eq!(places(lengths, &[(PATH, &file(801))]), [format!("{PATH}:1")]);
        assert!(places(lengths, &[(PATH, &file(800))]).is_empty());
        assert!(places(lengths, &[("crates/cpu/tests/main.rs", &file(801))]).is_empty());
    }
}
