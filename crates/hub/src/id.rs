//! Parses the name by which a user refers to a model: a path, the name of a
//! built-in model, an id `org/name[@revision][:QUANT]`, or the address of a page of the hub.

use std::fmt;
use std::path::{Path, PathBuf};

use girih_tensor::{Error, ErrorKind, Result};

use super::page::id_of_page;

/// The revision of an id that names none.
pub(super) const DEFAULT_REVISION: &str = "main";

/// The maximum size of an organisation's or a repository's name (the hub's limit).
const REPO_NAME_BYTES_MAX: usize = 96;
/// The maximum size of a revision: git refs are file names, which most systems cap at 255 bytes.
const REVISION_BYTES_MAX: usize = 255;
/// The maximum size of a quantization label, in bytes. It may be the whole name of a file.
const QUANT_BYTES_MAX: usize = 255;

/// A model on the hub: `org/name[@revision][:QUANT]`, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    org: String,
    name: String,
    revision: Option<String>,
    quant: Option<String>,
}

impl ModelId {
    /// Parses `org/name[@revision][:QUANT]`, optionally with the prefix `hf://`, or the address
    /// of one of the hub's pages of a model.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the text is not such an id.
    pub fn parse(text: &str) -> Result<ModelId> {
        ModelId::parse_at(text, "")
    }

    /// As [`ModelId::parse`]; addresses of the server `endpoint` count as the hub's, too.
    ///
    /// # Errors
    /// As [`ModelId::parse`].
    pub fn parse_at(text: &str, endpoint: &str) -> Result<ModelId> {
        let refused = |what: String| {
            let sentence = format!(
                "{text:?} is not a model id: {what}; write org/name, org/name@revision or org/name:QUANT"
            );
            Error::with_kind(ErrorKind::Refused, sentence)
        };
        let bare = match (text.strip_prefix("hf://"), id_of_page(text, endpoint)) {
            (Some(bare), _) => bare.to_owned(),
            (None, Some(page)) => page.map_err(refused)?,
            (None, None) => text.to_owned(),
        };
        let (bare, quant) = cut(&bare, ':');
        let (repo, revision) = cut(bare, '@');
        let (org, name) = repo.split_once('/').ok_or_else(|| refused("it has no '/'".into()))?;
        for part in [org, name] {
            check_name(part).map_err(refused)?;
        }
        if let Some(revision) = revision {
            check_revision(revision).map_err(refused)?;
        }
        if let Some(quant) = quant {
            check_quant(quant).map_err(refused)?;
        }
        Ok(ModelId {
            org: org.to_owned(),
            name: name.to_owned(),
            revision: revision.map(str::to_owned),
            quant: quant.map(str::to_owned),
        })
    }

    /// The repository, `org/name`.
    pub fn repo(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    /// The branch, tag or commit; `main` if the id names none.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// Whether the id itself names a revision.
    pub fn names_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The label of the GGUF file, such as `Q4_K_M`, or its whole name without the ending.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// The repository's folder in a cache: `models--org--name`.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        Ok(())
    }
}

fn cut(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// Checks one half of a repository's name against the hub's rules. Two hyphens
/// in a row are the separator in the cache's folder names, so they are refused.
fn check_name(name: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() {
        return Err("a part of the name is empty".into());
    }
    if name.len() > REPO_NAME_BYTES_MAX {
        return Err(format!("a part of the name has {} bytes, more than {REPO_NAME_BYTES_MAX}", name.len()));
    }
    if let Some(odd) = name.chars().find(|&c| !letters(c)) {
        return Err(format!("the name contains {odd:?}"));
    }
    if name.contains("--") || name.contains("..") {
        return Err(format!("{name:?} contains '--' or '..'"));
    }
    if name.starts_with(['-', '.']) || name.ends_with(['-', '.']) {
        return Err(format!("{name:?} starts or ends with '-' or '.'"));
    }
    Ok(())
}

/// Checks a branch, tag or commit, which is also a path below `refs/`.
pub(super) fn check_revision(revision: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
    if revision.is_empty() || revision.len() > REVISION_BYTES_MAX {
        return Err(format!(
            "the revision has {} bytes; 1 to {REVISION_BYTES_MAX} are needed",
            revision.len()
        ));
    }
    if let Some(odd) = revision.chars().find(|&c| !letters(c)) {
        return Err(format!("the revision contains {odd:?}"));
    }
    if revision.contains("..") || revision.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        return Err(format!("the revision {revision:?} is not a plain name"));
    }
    Ok(())
}

fn check_quant(quant: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
    let is_plain = quant.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if !is_plain || quant.len() > QUANT_BYTES_MAX || !quant.chars().all(letters) {
        return Err(format!("{quant:?} is not a quantization label such as Q4_K_M"));
    }
    Ok(())
}

/// The model that a MODEL argument refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelReference {
    /// A model inside the binary.
    BuiltIn(String),
    /// A file or a folder, which need not exist.
    Path(PathBuf),
    /// A repository on the hub.
    Id(ModelId),
}

impl ModelReference {
    /// Parses a MODEL argument.
    ///
    /// A built-in name comes first, so that it means the same in every folder
    /// (`./name` is a file of that name). Then a text that exists on disk, or
    /// looks like a path, is a path. Everything else must be an id, or the address of a page of the
    /// hub or of the server `endpoint`.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::NotFound`] when the text is none of these, and
    /// [`ErrorKind::Refused`] when a text that is an address or begins with `hf://` names no model.
    pub fn parse(text: &str, built_in: &[&str], endpoint: &str) -> Result<ModelReference> {
        if built_in.contains(&text) {
            return Ok(ModelReference::BuiltIn(text.to_owned()));
        }
        let exists = || !text.is_empty() && Path::new(text).exists();
        if text.contains("://") || (id_of_page(text, endpoint).is_some() && !exists()) {
            return ModelId::parse_at(text, endpoint).map(ModelReference::Id);
        }
        if looks_like_path(text) || exists() {
            return Ok(ModelReference::Path(PathBuf::from(text)));
        }
        ModelId::parse(text).map(ModelReference::Id).map_err(|error| {
            let names = built_in.join(", ");
            let sentence =
                format!("{error}, the path of a file or folder that exists, or a built-in model ({names})");
            Error::with_kind(ErrorKind::NotFound, sentence)
        })
    }
}

fn looks_like_path(text: &str) -> bool {
    text.starts_with(['.', '/', '~'])
        || [".gguf", ".safetensors", ".q4nx"].iter().any(|end| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_it_was_written() {
        for text in ["a/b", "org/name@main", "org/na.me_1:Q4_K_M", "org/name@refs/pr/1:BF16"] {
            assert_eq!(ModelId::parse(text).unwrap().to_string(), text);
        }
        let id = ModelId::parse("hf://org/name@v1:Q8_0").unwrap();
        assert_eq!((id.repo().as_str(), id.revision(), id.quant()), ("org/name", "v1", Some("Q8_0")));
        assert_eq!(ModelId::parse("org/name").unwrap().revision(), "main");
    }

    #[test]
    fn a_page_prints_as_the_id_that_it_means() {
        let id = ModelId::parse("https://huggingface.co/org/name/blob/v1/Q8_0/m-Q8_0.gguf").unwrap();
        assert_eq!(id.to_string(), "org/name@v1:Q8_0/m-Q8_0");
        assert_eq!(ModelId::parse(&id.to_string()).unwrap(), id);
        let error = ModelId::parse("https://github.com/org/name").unwrap_err();
        assert!(error.to_string().contains("github.com' is not the hub"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Refused);
    }

    #[test]
    fn malformed_ids_are_refused() {
        let long = format!("org/{}", "n".repeat(97));
        let malformed = [
            "",
            "name",
            "/name",
            "org/",
            "org/a/b",
            "../name",
            "org/..",
            "org/a--b",
            "-org/name",
            "org/name.",
            "org/na me",
            "org/n\u{e9}",
            "org/name@",
            "org/name@../x",
            "org/name@a//b",
            "org/name@.hidden",
            "org/name:",
            "org/name:Q4/..",
            "org/name:/Q4",
            "org/name\0",
            "org\\name",
            &long,
        ];
        for text in malformed {
            let error = ModelId::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Refused, "{text:?}");
            assert!(error.to_string().contains("is not a model id"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_reference_is_built_in_then_a_path_then_an_id() {
        let parse = |text: &str| ModelReference::parse(text, &["stories260k"], "http://localhost:1");
        assert_eq!(parse("stories260k").unwrap(), ModelReference::BuiltIn("stories260k".into()));
        for path in ["./stories260k", "/a/b", "~/m", "m.gguf", "x/m.safetensors", "."] {
            assert_eq!(parse(path).unwrap(), ModelReference::Path(path.into()));
        }
        // Tests run in the crate's folder, so this path exists.
        assert_eq!(parse("tests/it").unwrap(), ModelReference::Path("tests/it".into()));
        assert!(matches!(parse("org/name").unwrap(), ModelReference::Id(_)));
        assert!(matches!(parse("hf://tests/it").unwrap(), ModelReference::Id(_)));
        for page in ["https://hf.co/org/name/blob/main/m.gguf", "localhost:1/org/name", "hf.co/org/name"] {
            assert!(matches!(parse(page).unwrap(), ModelReference::Id(_)), "{page}");
        }
        let error = parse("storys260k").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(parse("hf://name").unwrap_err().kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("built-in model (stories260k)"), "{error}");
    }
}
