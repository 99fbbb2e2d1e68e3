//! Rules about files of every type.

use super::fault::Fault;
use super::tree::File;
use super::tree::Tree;

/// The maximum size of a file that is not in [`LARGE`].
const FILE_BYTES: usize = 1_000_000;

/// The larger files that are allowed.
const LARGE: &[&str] = &["crates/girih/assets/stories260k/model.safetensors"];

/// Phrases that STYLE.md bans, in lower case.
const BANNED: &[&str] = &["so many", "as it were", "whoever", "of which there"];

/// Folders that exist on one machine only. They are assembled from parts,
/// because this file is searched for them too.
const MACHINE: [&str; 3] = [concat!("/", "work/"), concat!("/", "home/"), concat!("/", "root/")];

/// No trailing white space, no tabs in Rust, and a final newline, in files that
/// are written by hand.
pub fn white_space(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.files.iter().filter(|file| is_handwritten(file)) {
        let Some(text) = file.text.as_deref() else { continue };
        let tabs_banned = file.path.ends_with(".rs");
        for (index, line) in text.split('\n').enumerate() {
            if line.ends_with(char::is_whitespace) {
                faults.push(Fault::new(&file.path, index + 1, "the line ends with white space"));
            }
            if tabs_banned && line.contains('\t') {
                faults.push(Fault::new(
                    &file.path,
                    index + 1,
                    "the line contains a tab: use spaces, or \\t in a literal",
                ));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(Fault::new(&file.path, text.lines().count(), "the file does not end with a newline"));
        }
    }
    faults
}

/// No file names a folder of the machine that it was written on.
pub fn machine_paths(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.as_deref().unwrap_or_default().lines().enumerate() {
            for folder in MACHINE.into_iter().filter(|folder| begins_a_path(line, folder)) {
                let sentence =
                    format!("{folder} is a folder of one machine: use a relative path or a variable");
                faults.push(Fault::new(&file.path, index + 1, sentence));
            }
        }
    }
    faults
}

/// No phrase of [`BANNED`] in comments and documents.
pub fn plain_words(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut search = |path: &str, text: &str| {
        for (index, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            for phrase in BANNED.iter().filter(|phrase| has_words(&line, phrase)) {
                let sentence = format!("'{phrase}' is not plain English here: see STYLE.md");
                faults.push(Fault::new(path, index + 1, sentence));
            }
        }
    };
    tree.rust().for_each(|(file, source)| search(&file.path, &source.comments));
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md") && file.path != "STYLE.md");
    documents.for_each(|file| search(&file.path, file.text.as_deref().unwrap_or_default()));
    faults
}

/// No large file is committed by accident.
pub fn large_files(tree: &Tree) -> Vec<Fault> {
    let large =
        tree.files.iter().filter(|file| file.bytes > FILE_BYTES && !LARGE.contains(&file.path.as_str()));
    large
        .map(|file| {
            let sentence =
                format!("the file has {} bytes, the maximum of an unlisted file is {FILE_BYTES}", file.bytes);
            Fault::new(&file.path, 1, sentence)
        })
        .collect()
}

/// Data under `tests/` is exempt: its broken files are broken on purpose.
fn is_handwritten(file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs" | "md") => true,
        Some("toml" | "py" | "sh" | "tsv" | "yml") => !file.path.starts_with("tests/"),
        _ => file.path == ".ci/run",
    }
}

/// Whether `line` contains `phrase` as whole words.
fn has_words(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + phrase.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

/// Whether `line` contains `folder`, except as a part of a longer path or
/// address.
fn begins_a_path(line: &str, folder: &str) -> bool {
    let within = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-~}".contains(c));
    line.match_indices(folder).any(|(at, _)| !within(&line[..at]))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn white_space_is_clean() {
        assert_eq!(places(white_space, &[("a.rs", "//! A. \nfn a() {}\n")]), ["a.rs:1"]);
        assert_eq!(places(white_space, &[("a.rs", "//! A.\n\tfn a() {}\n")]), ["a.rs:2"]);
        assert_eq!(places(white_space, &[("a.md", "one\r\ntwo")]), ["a.md:1", "a.md:2"]);
        assert!(places(white_space, &[("a.rs", "//! A.\n"), ("b.tsv", "a\tb\n"), ("c.md", "")]).is_empty());
        assert!(places(white_space, &[("tests/bad/a.toml", "a = 1 ")]).is_empty());
    }

    #[test]
    fn a_folder_of_one_machine_is_a_fault() {
        let bad = format!("see\n`{}me/models`\n", MACHINE[1]);
        assert_eq!(places(machine_paths, &[("a.md", &bad)]), ["a.md:2"]);
        let good = format!("https://example.org{}page and ~{}x\n", MACHINE[1], MACHINE[0]);
        assert!(places(machine_paths, &[("a.md", &good)]).is_empty());
    }

    #[test]
    fn banned_phrases_are_faults_in_comments_and_documents() {
        assert_eq!(places(plain_words, &[("a.rs", "//! A.\n/// So many rows.\n")]), ["a.rs:2"]);
        assert_eq!(places(plain_words, &[("a.md", "Whoever reads.\n")]), ["a.md:1"]);
        let good = [("a.rs", "//! A.\nconst A: &str = \"so many\";\n"), ("a.md", "Also many.\n")];
        assert!(places(plain_words, &good).is_empty());
    }

    #[test]
    fn a_large_file_is_listed_or_a_fault() {
        let text = "a".repeat(FILE_BYTES + 1);
        assert_eq!(places(large_files, &[("a.bin", &text)]), ["a.bin:1"]);
        assert!(places(large_files, &[("a.bin", &text[1..]), (LARGE[0], &text)]).is_empty());
    }
}
