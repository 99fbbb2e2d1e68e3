//! Parses and checks the server's list of a repository's files.

use std::collections::HashSet;

use girih_file::shorten_parse;
use girih_tensor::{Error, Result};
use serde::Deserialize;

use super::digest::Digest;

/// The maximum number of files of one repository.
const FILES_MAX: usize = 100_000;

/// The maximum size of a file's name, folders included, in bytes.
const FILE_NAME_BYTES_MAX: usize = 1024;
/// The maximum size of one part of a name (the limit of most file systems).
const PART_BYTES_MAX: usize = 255;
/// The maximum number of parts in one name: folders and the file itself.
const NAME_PARTS_MAX: usize = 16;

/// One commit of a repository.
#[derive(Debug)]
pub(super) struct Listing {
    /// 40 hexadecimal digits.
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// One file of a repository, as the listing describes it.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    /// A plain relative path.
    pub name: String,
    /// `None` if the listing omits it, as some mirrors do.
    pub size: Option<u64>,
    /// `None` if the listing omits it, as some mirrors do.
    pub digest: Option<Digest>,
}

#[derive(Deserialize)]
struct ListingJson {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
    size: Option<u64>,
}

impl Listing {
    /// Parses the JSON of `/api/models/{repo}/revision/{revision}?blobs=true`.
    pub fn parse(json: &[u8]) -> Result<Listing> {
        let parsed: ListingJson = serde_json::from_slice(json).map_err(|error| {
            Error::new(format!(
                "the server's list of files is not what the hub sends ({}); check HF_ENDPOINT",
                shorten_parse(&error)
            ))
        })?;
        let commit = parsed.sha;
        check_commit(&commit)?;
        let (count, cap) = (parsed.siblings.len(), FILES_MAX);
        if count > cap {
            return Err(Error::new(format!(
                "the repository lists {count} files, more than the cap of {cap}"
            )));
        }
        let mut seen = HashSet::new();
        for sibling in &parsed.siblings {
            check_file_name(&sibling.rfilename)?;
            if !seen.insert(sibling.rfilename.as_str()) {
                return Err(Error::new(format!("the repository lists {:?} twice", cut(&sibling.rfilename))));
            }
        }
        let files = parsed.siblings.into_iter().map(RemoteFile::read).collect::<Result<_>>()?;
        Ok(Listing { commit, files })
    }
}

impl RemoteFile {
    fn read(sibling: Sibling) -> Result<RemoteFile> {
        let (text, size) = match sibling.lfs {
            Some(large) => (Some(large.sha256), large.size.or(sibling.size)),
            None => (sibling.blob_id, sibling.size),
        };
        let digest = text.map(|text| Digest::parse(&text).ok_or(text)).transpose().map_err(|text| {
            Error::new(format!(
                "the listing names {:?} as the digest of {:?}; 64 or 40 hexadecimal digits are needed",
                cut(&text),
                cut(&sibling.rfilename)
            ))
        })?;
        Ok(RemoteFile { name: sibling.rfilename, size, digest })
    }
}

/// Checks that a commit, which becomes a folder's name, is a git digest.
pub(super) fn check_commit(commit: &str) -> Result<()> {
    match Digest::parse(commit) {
        Some(Digest::GitBlob(_)) => Ok(()),
        _ => Err(Error::new(format!("{:?} is not a commit; 40 hexadecimal digits are needed", cut(commit)))),
    }
}

/// Checks that a file's name, which becomes a path below the snapshot, is a plain relative path.
pub(super) fn check_file_name(name: &str) -> Result<()> {
    let refused = |why: &str| {
        Err(Error::new(format!(
            "the repository has a file called {:?}, which {why}; such a repository is not downloaded",
            cut(name)
        )))
    };
    if name.is_empty() || name.len() > FILE_NAME_BYTES_MAX {
        return refused("is empty or too long");
    }
    if name.contains('\\') || name.chars().any(char::is_control) {
        return refused("contains a backslash or a control character");
    }
    if name.starts_with('/') {
        return refused("is an absolute path");
    }
    let mut depth = 0;
    for part in name.split('/') {
        depth += 1;
        if matches!(part, "" | "." | "..") {
            return refused("is not a plain path");
        }
        if part.len() > PART_BYTES_MAX || depth > NAME_PARTS_MAX {
            return refused("is too long or too deep");
        }
    }
    Ok(())
}

/// The start of an untrusted text, short enough for an error.
fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_names_pass() {
        for name in ["config.json", "a/b.gguf", "...", "a..b", "über.txt"] {
            check_file_name(name).unwrap();
        }
        let deep = "a/".repeat(16) + "b";
        let long = "n".repeat(256);
        for name in
            ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "a\\b", "a\0b", "a\nb", &deep, &long]
        {
            let error = check_file_name(name).expect_err(name).to_string();
            assert!(error.contains("is not downloaded"), "{error}");
        }
    }

    #[test]
    fn malformed_listings_are_refused_with_a_sentence() {
        let commit = "0".repeat(40);
        let file = |rest: &str| format!(r#"{{"sha":"{commit}","siblings":[{{"rfilename":"a"{rest}}}]}}"#);
        assert!(Listing::parse(file("").as_bytes()).is_ok());
        let malformed = [
            ("[]".to_owned(), "not what the hub sends"),
            (r#"{"sha":"../..","siblings":[]}"#.to_owned(), "is not a commit"),
            (file(r#","size":-1"#), "not what the hub sends"),
            (file(r#","size":18446744073709551616"#), "not what the hub sends"),
            (file(r#","blobId":"../x""#), "as the digest of"),
            (file(r#"},{"rfilename":"a""#), "twice"),
            ("[".repeat(100_000), "not what the hub sends"),
        ];
        for (json, sentence) in malformed {
            let error = Listing::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
