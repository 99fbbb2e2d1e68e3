//! The models of a folder.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The maximum number of models of a folder.
const MAX_MODELS: usize = 1024;

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
        match name_of(file, &path) {
            Some(name) => models.push(FolderModel { name: format!("{prefix}{name}"), path: text.to_owned() }),
            None if !file.starts_with('.') && path.is_dir() => owners.push((file.to_owned(), path)),
            None => {}
        }
        if models.len() > MAX_MODELS || owners.len() > MAX_MODELS {
            break;
        }
    }
    Ok(owners)
}

/// The name of a model; `None` if the entry is none.
fn name_of<'a>(file: &'a str, path: &Path) -> Option<&'a str> {
    if file.starts_with('.') {
        return None;
    }
    if path.is_dir() {
        return path.join("config.json").is_file().then_some(file);
    }
    let stem = file.strip_suffix(".gguf").filter(|stem| !stem.contains("mmproj"))?;
    // `name-00002-of-00003`
    match stem.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-')) {
        Some((name, part)) if part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit()) => {
            (part == "00001").then_some(name)
        }
        _ => Some(stem),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_and_files_are_models_under_their_names() {
        let folder = std::env::temp_dir().join(format!("girih-model-folder-{}", std::process::id()));
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
        let names: Vec<String> = models(&folder).unwrap().into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["a", "b", "c", "one-of-two", "org/d", "org/e:Q4_0"]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(models(&folder).is_err());
    }
}
