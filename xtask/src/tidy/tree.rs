//! The files of the repository, as the rules see them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::source::Source;

/// Every file that git tracks or would track.
pub struct Tree {
    /// The files, sorted by path.
    pub files: Vec<File>,
}

/// One file; paths are relative to the root, with `/`.
pub struct File {
    pub path: String,
    pub bytes: usize,
    /// The content, if it is UTF-8.
    pub text: Option<String>,
    source: Option<Source>,
}

/// A manifest of the workspace or of one of its crates.
pub struct Manifest<'a> {
    pub path: &'a str,
    pub table: toml::Table,
    text: &'a str,
}

impl Tree {
    /// Reads the checkout at `root`. New files that git does not ignore belong
    /// to it, so a fault is found before it is committed.
    pub fn from_git(root: &Path) -> Result<Tree, String> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| {
                format!("git cannot be started ({error}): tidy needs it for the list of files")
            })?;
        if !listing.status.success() {
            return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr).trim()));
        }
        let listing =
            String::from_utf8(listing.stdout).map_err(|_| "a path in git is not UTF-8: rename it")?;
        let mut files = Vec::new();
        for path in listing.split_terminator('\0') {
            let place = root.join(path);
            if place.is_file() {
                let bytes = fs::read(&place).map_err(|error| format!("{path} cannot be read: {error}"))?;
                files.push(File::new(path, bytes));
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// A tree for the tests of the rules.
    #[cfg(test)]
    pub fn from_texts(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, text.as_bytes().to_vec())).collect() }
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files.iter().filter_map(|file| Some((file, file.source.as_ref()?)))
    }

    /// The manifests of the members: `crates/*` and `xtask`.
    pub fn members(&self) -> impl Iterator<Item = Manifest<'_>> {
        self.files.iter().filter(|file| file.member().is_some()).filter_map(Manifest::read)
    }

    /// The manifest of the workspace.
    pub fn workspace(&self) -> Option<Manifest<'_>> {
        self.files.iter().find(|file| file.path == "Cargo.toml").and_then(Manifest::read)
    }
}

impl File {
    fn new(path: &str, content: Vec<u8>) -> File {
        let bytes = content.len();
        let text = String::from_utf8(content).ok();
        let source = text.as_deref().filter(|_| path.ends_with(".rs")).map(Source::new);
        File { path: path.to_owned(), bytes, text, source }
    }

    /// Whether the whole file is test code.
    pub fn is_test(&self) -> bool {
        let path = format!("/{}", self.path);
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/")
    }

    /// The name of the crate whose manifest this is: `tensor` for
    /// `crates/tensor/Cargo.toml`.
    fn member(&self) -> Option<&str> {
        let folder = self.path.strip_suffix("/Cargo.toml")?;
        let name = folder.strip_prefix("crates/").unwrap_or(folder);
        (folder == "xtask" || (folder != name && !name.contains('/'))).then_some(name)
    }
}

impl<'a> Manifest<'a> {
    fn read(file: &'a File) -> Option<Manifest<'a>> {
        let text = file.text.as_deref()?;
        let table = text.parse().expect("cargo has read this manifest to build xtask");
        Some(Manifest { path: &file.path, table, text })
    }

    /// The crate's folder name: `tensor`, `xtask`.
    pub fn name(&self) -> &'a str {
        self.path.trim_end_matches("/Cargo.toml").trim_start_matches("crates/")
    }

    /// The line that declares `key`, for the location of a fault.
    pub fn line(&self, key: &str) -> usize {
        self.text.lines().position(|line| line.starts_with(key)).map_or(1, |index| index + 1)
    }

    /// The real names of the packages that the tables called `kind` declare, in
    /// `[kind]` and `[target.….kind]`.
    pub fn dependencies(&self, kind: &str) -> Vec<String> {
        let targets = self.table.get("target").and_then(toml::Value::as_table);
        let tables = targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
        tables
            .chain([&self.table])
            .filter_map(|table| table.get(kind)?.as_table())
            .flatten()
            .map(|(key, value)| value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_owned())
            .collect()
    }
}
