//! The models of a folder.

use std::path::{Path, PathBuf};

use girih_file::{COMPANIONS, SplitName, is_projector};

use crate::error::{Error, Result};

/// The maximum number of models of a folder.
const MAX_MODELS: usize = 1024;

/// The file of a folder that has the options of its models.
pub const OPTIONS_FILE: &str = "girih.toml";

/// A model of a folder. Models are in the order of their names, then of their paths.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FolderModel {
    /// Its name in the APIs: that of its folder or file.
    pub name: String,
    /// Where it lies.
    pub path: String,
}

/// The models of a folder, by name: folders with a `config.json`, and `.gguf` files; those of a folder without a
/// `config.json`, such as an organization's, are named `FOLDER/NAME`. Of a model in parts, the first part counts; projectors of
/// images (`mmproj`) and hidden entries do not. Two may have the same name.
///
/// # Errors
/// When the folder cannot be read, or has too many.
pub fn models(folder: &Path) -> Result<Vec<FolderModel>> {
    let mut models = Vec::new();
    let owners = add_models(folder, "", &mut models)?;
    for (owner, path) in owners {
        // What cannot be read within it is no model.
        let _ = add_models(&path, &format!("{owner}/"), &mut models);
    }
    if models.len() > MAX_MODELS {
        let folder = folder.display();
        return Err(Error::call(format!("{folder} has more than {MAX_MODELS} models; name another folder")));
    }
    models.sort();
    Ok(models)
}

/// Adds the models of a folder, `prefix` before their names, and returns the other folders in it, with their names.
fn add_models(folder: &Path, prefix: &str, models: &mut Vec<FolderModel>) -> Result<Vec<(String, PathBuf)>> {
    let unreadable = |error: std::io::Error| Error::work(format!("{}: {error}", folder.display()));
    let mut owners = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let (Some(file), Some(text)) = (path.file_name().and_then(|name| name.to_str()), path.to_str())
        else {
            continue;
        };
        match model_entry(&path) {
            Some(ModelEntry { name, is_opened: true }) => {
                models.push(FolderModel { name: format!("{prefix}{name}"), path: text.to_owned() });
            }
            Some(_) => {}
            None if !file.starts_with('.') && path.is_dir() => owners.push((file.to_owned(), path)),
            None => {}
        }
        if models.len() > MAX_MODELS || owners.len() > MAX_MODELS {
            break;
        }
    }
    Ok(owners)
}

/// The model to which an entry of a folder belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelEntry<'a> {
    /// The model's name in its folder.
    pub name: &'a str,
    /// Whether the entry is opened as the model: a folder, a file, or the first part.
    pub is_opened: bool,
}

/// The model to which an entry of a folder belongs; `None` if it is no part of one.
pub fn model_entry(path: &Path) -> Option<ModelEntry<'_>> {
    let file = path.file_name()?.to_str().filter(|file| !file.starts_with('.'))?;
    if path.is_dir() {
        let entry = ModelEntry { name: file, is_opened: true };
        return path.join("config.json").is_file().then_some(entry);
    }
    gguf_entry(file)
}

/// The model to which a GGUF file of this name belongs.
fn gguf_entry(file: &str) -> Option<ModelEntry<'_>> {
    let stem = file.strip_suffix(".gguf").filter(|_| !is_projector(file))?;
    Some(match SplitName::of(stem) {
        Some(SplitName { prefix, number, .. }) => ModelEntry { name: prefix, is_opened: number == 1 },
        None => ModelEntry { name: stem, is_opened: true },
    })
}

/// Whether a model of this name in its folder is found under it, and no file that belongs beside models has it.
pub fn is_own_name(name: &str) -> bool {
    let entry = ModelEntry { name, is_opened: true };
    gguf_entry(&format!("{name}.gguf")) == Some(entry) && !is_reserved(name)
}

/// Whether a file that belongs beside models, or to one, has this name.
pub fn is_reserved(name: &str) -> bool {
    name == OPTIONS_FILE || COMPANIONS.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_and_files_are_models_under_their_names() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        for model in ["b", "empty", ".hidden", "org/d"] {
            fs::create_dir_all(folder.join(model)).unwrap();
        }
        for file in [
            "b/config.json",
            "org/d/config.json",
            "org/e:Q4_0.gguf",
            ".hidden/config.json",
            "a.gguf",
            "c-00001-of-00002.gguf",
            "c-00002-of-00002.gguf",
            "mmproj-a.gguf",
            "notes.txt",
            "one-of-two.gguf",
        ] {
            fs::write(folder.join(file), "").unwrap();
        }
        let names: Vec<String> = models(folder).unwrap().into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["a", "b", "c", "one-of-two", "org/d", "org/e:Q4_0"]);
        let part = ModelEntry { name: "c", is_opened: false };
        assert_eq!(model_entry(&folder.join("c-00002-of-00002.gguf")), Some(part));
        assert!(models(&folder.join("none")).is_err());
    }

    #[test]
    fn a_name_under_which_no_model_is_found_is_no_own_name() {
        for name in ["a", "Qwen3:Q4_0", "a-00001-of-00002-b", "x.gguf"] {
            assert!(is_own_name(name), "{name}");
        }
        for name in
            ["mmproj-a", "a-MMproj-F16", "a-00001-of-00003", "a-00002-of-00003", "girih.toml", "config.json"]
        {
            assert!(!is_own_name(name), "{name}");
        }
    }
}
