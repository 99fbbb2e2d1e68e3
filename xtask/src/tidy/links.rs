//! Rules about the links of documents.

use super::fault::Fault;
use super::tree::Tree;

/// A relative link of a document, and each of its pictures, names a file or a folder of the
/// repository.
pub fn links(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    let is_document = |path: &str| path.ends_with(".md") && !path.starts_with("tests/");
    for file in tree.files.iter().filter(|file| is_document(&file.path)) {
        let text = file.text.as_deref().unwrap_or_default();
        // A link may go on in the next line, so the whole text is searched.
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap_or_default();
            let path = target.split('#').next().unwrap_or_default();
            let is_outside = path.contains(':') || path.contains(char::is_whitespace) || path.is_empty();
            if is_outside || is_there(tree, &file.path, path) {
                continue;
            }
            let line = text[..at].matches('\n').count() + 1;
            faults.push(Fault::new(&file.path, line, format!("the link '{target}' names no file")));
        }
    }
    faults
}

/// Whether `path`, relative to the folder of `from`, is a file or a folder.
fn is_there(tree: &Tree, from: &str, path: &str) -> bool {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let folder = format!("{path}/");
    path.is_empty() || tree.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_link_names_a_file() {
        let good = "[a](a.md) ![b](pictures/b.svg)\n[c](../crates/x) [d](https://example.org/e) [f](#f) [g](a.md#g)\n";
        let others = [("docs/pictures/b.svg", ""), ("crates/x/src/lib.rs", "")];
        let tree = |text| [("docs/a.md", text), others[0], others[1]];
        assert!(places(links, &tree(good)).is_empty());
        assert_eq!(places(links, &tree("\n![b](b.svg)\n")), ["docs/a.md:2"]);
        assert_eq!(places(links, &tree("[a](../../a.md)\n")), ["docs/a.md:1"]);
        assert!(places(links, &[("tests/a.md", "[a](b.md)\n")]).is_empty());
    }
}
