//! Rules about the form of Rust files: names, lengths, openings.

use std::collections::BTreeMap;

use super::source::leading_name;
use super::tree::File;
use super::{Fault, Tree};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 800;

/// Rows of `path`, `file` or `fn name`, and its lines, separated by tabs.
const RATCHET: &str = "xtask/ratchet.tsv";

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

/// No module has a name that fits anything.
pub fn module_names(tree: &Tree) -> Vec<Fault> {
    const NAMELESS: [&str; 4] = ["utils", "common", "helpers", "misc"];
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        for at in source.words("mod") {
            let name = leading_name(&source.code[at + 3..]);
            if NAMELESS.contains(&name) {
                let sentence = format!("a module called {name} says nothing: name what it holds");
                faults.push(Fault::new(&file.path, source.line(at), sentence));
            }
        }
    }
    faults
}

/// Nothing on the main branch is marked as unfinished.
pub fn unfinished(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        for name in ["todo", "unimplemented", "dbg"] {
            let calls = source.words(name).filter(|at| source.code[at + name.len()..].starts_with('!'));
            faults.extend(
                calls.map(|at| Fault::new(&file.path, source.line(at), format!("`{name}!` is left in"))),
            );
        }
        for (index, comment) in source.comments.lines().enumerate() {
            let mark = ["FIXME", "HACK"].into_iter().find(|mark| comment.contains(mark));
            faults.extend(mark.map(|mark| Fault::new(&file.path, index + 1, format!("{mark} is left in"))));
        }
    }
    faults
}

/// Functions and files are short. Known exceptions stand in [`RATCHET`] with
/// their present length, which may only go down.
pub fn lengths(tree: &Tree) -> Vec<Fault> {
    let (mut known, mut faults) = ratchet(tree);
    for long in overlong(tree) {
        let Some((row, lines)) = known.remove(&(long.path.clone(), long.item.clone())) else {
            let sentence = format!(
                "{} has {} lines, at most {} are allowed: split it",
                long.item, long.lines, long.most
            );
            faults.push(Fault::new(&long.path, long.line, sentence));
            continue;
        };
        if long.lines > lines {
            let sentence = format!(
                "{} has {} lines, the known exception had {lines}: it may only shrink",
                long.item, long.lines
            );
            faults.push(Fault::new(&long.path, long.line, sentence));
        } else if long.lines < lines {
            let sentence =
                format!("{} of {} has shrunk to {} lines: write that here", long.item, long.path, long.lines);
            faults.push(Fault::new(RATCHET, row, sentence));
        }
    }
    for ((path, item), (row, _)) in known {
        faults.push(Fault::new(
            RATCHET,
            row,
            format!("{item} of {path} is no exception any more: remove the row"),
        ));
    }
    faults
}

/// Something longer than allowed.
struct Overlong {
    path: String,
    line: usize,
    item: String,
    lines: usize,
    most: usize,
}

fn overlong(tree: &Tree) -> Vec<Overlong> {
    let mut found = Vec::new();
    for (file, source) in tree.rust() {
        found.extend(overlong_file(file));
        found.extend(source.functions().into_iter().filter(|f| f.lines > FUNCTION_LINES).map(|f| Overlong {
            path: file.path.clone(),
            line: f.line,
            item: format!("fn {}", f.name),
            lines: f.lines,
            most: FUNCTION_LINES,
        }));
    }
    found
}

fn overlong_file(file: &File) -> Option<Overlong> {
    let lines = file.text.as_deref()?.lines().count();
    (lines > FILE_LINES && !file.is_test()).then(|| Overlong {
        path: file.path.clone(),
        line: 1,
        item: "file".to_owned(),
        lines,
        most: FILE_LINES,
    })
}

/// The known exceptions: path and item, to the row's line number and its length.
type Known = BTreeMap<(String, String), (usize, usize)>;

fn ratchet(tree: &Tree) -> (Known, Vec<Fault>) {
    let (mut known, mut faults) = (Known::new(), Vec::new());
    let text = tree.file(RATCHET).and_then(|file| file.text.as_deref()).unwrap_or_default();
    for (index, row) in text.lines().enumerate().filter(|(_, row)| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        match (&fields[..], fields.last().and_then(|lines| lines.parse().ok())) {
            ([path, item, _], Some(lines)) => {
                known.insert(((*path).to_owned(), (*item).to_owned()), (index + 1, lines));
            }
            _ => faults.push(Fault::new(
                RATCHET,
                index + 1,
                "the row is not path, item and lines, separated by tabs",
            )),
        }
    }
    (known, faults)
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
    fn unfinished_code_is_a_fault() {
        let bad =
            "//! A.\nfn a() { todo![] }\nfn b() { dbg![1]; }\n// FIXME: c\nfn d() { unimplemented![] }\n";
        assert_eq!(places(unfinished, &[(PATH, bad)]).len(), 4);
        let good = "//! A.\nfn todo() {}\nconst A: &str = \"FIXME todo![]\";\n// todo![] is banned.\n";
        assert!(places(unfinished, &[(PATH, good)]).is_empty());
    }

    #[test]
    fn a_long_function_is_a_fault_and_a_long_test_file_is_none() {
        let function = |lines: usize| format!("//! A.\nfn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert_eq!(places(lengths, &[(PATH, &function(71))]), [format!("{PATH}:2")]);
        assert!(places(lengths, &[(PATH, &function(70))]).is_empty());
        let file = |lines: usize| format!("//! A.\n{}", "const A: u8 = 1;\n".repeat(lines - 1));
        assert_eq!(places(lengths, &[(PATH, &file(801))]), [format!("{PATH}:1")]);
        assert!(places(lengths, &[(PATH, &file(800))]).is_empty());
        assert!(places(lengths, &[("crates/cpu/tests/main.rs", &file(801))]).is_empty());
    }

    #[test]
    fn a_known_exception_may_only_shrink() {
        let text = format!("//! A.\nfn long() {{\n{}}}\n", "    a();\n".repeat(78));
        let with = |ratchet: &str| places(lengths, &[(PATH, &text), (RATCHET, ratchet)]);
        assert!(with(&format!("# path\titem\tlines\n{PATH}\tfn long\t80\n")).is_empty());
        assert_eq!(with(&format!("{PATH}\tfn long\t79\n")), [format!("{PATH}:2")]);
        assert_eq!(with(&format!("{PATH}\tfn long\t81\n")), [format!("{RATCHET}:1")]);
        assert_eq!(with(&format!("{PATH}\tfn long\t80\n{PATH}\tfile\t900\n")), [format!("{RATCHET}:2")]);
        assert_eq!(with(&format!("{PATH}\tfn long\t80\nnonsense\n")), [format!("{RATCHET}:2")]);
    }
}
