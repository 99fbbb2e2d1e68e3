//! Files of models in their folder: where they are, which names are allowed, and how they are added, removed and
//! given a second name. Nothing outside the folder is changed, and no link is followed to change what it leads to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use girih::{Error, ErrorKind, Result};
use girih_file::quote;

use crate::model_folder::{self, FolderModel};

/// The maximum length of a name in bytes.
const NAME_BYTES: usize = 200;

/// The maximum number of entries that are counted.
const MAX_ENTRIES: usize = 100_000;

/// How the name of an entry begins that is not complete yet.
const DRAFT: &str = ".girih-draft-";

/// Checks a name that a client gives to a model: `name` or `org/name`, which becomes a file's name.
///
/// # Errors
/// When it is none.
pub fn check_name(name: &str) -> Result<()> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "-_.:+".contains(c);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(is_letter)
    };
    let parts: Vec<&str> = name.split('/').collect();
    if name.len() <= NAME_BYTES && parts.len() <= 2 && parts.iter().all(|part| is_part(part)) {
        return Ok(());
    }
    Err(refused(format!(
        "{} is no name of a model: NAME or ORG/NAME of letters, digits and -_.:+ is needed, at most {NAME_BYTES} bytes",
        quote(name)
    )))
}

/// Checks the length of a name, of a model that may be there.
///
/// # Errors
/// When it is too long.
pub fn check_length(name: &str) -> Result<()> {
    match name.len() > NAME_BYTES {
        true => Err(refused(format!(
            "a name of {} bytes is no name of a model; it has at most {NAME_BYTES}",
            name.len()
        ))),
        false => Ok(()),
    }
}

/// The bytes that the files of a folder take on disk, each once.
///
/// # Errors
/// When it cannot be read, or has too many entries.
pub fn used_bytes(folder: &Path) -> Result<u64> {
    let (mut seen, mut waiting, mut bytes) = (BTreeSet::new(), vec![folder.to_owned()], 0u64);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, "be read", &error))? {
            let path = entry.map_err(|error| failed(&folder, "be read", &error))?.path();
            // A file may go meanwhile.
            let Ok(status) = fs::symlink_metadata(&path) else { continue };
            if !seen.insert((status.dev(), status.ino())) {
                continue;
            }
            if seen.len() > MAX_ENTRIES {
                return Err(refused(format!("{} has more than {MAX_ENTRIES} entries", folder.display())));
            }
            bytes = bytes.saturating_add(status.blocks().saturating_mul(512));
            if status.is_dir() {
                waiting.push(path);
            }
        }
    }
    Ok(bytes)
}

/// The files of a model, all parts of one in parts, or its folder.
///
/// # Errors
/// When there is no such model.
pub fn entries_of(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let models =
        model_folder::models(folder).map_err(|error| Error::with_kind(ErrorKind::Other, error.sentence()))?;
    let Some(FolderModel { path, .. }) = models.into_iter().find(|model| model.name == name) else {
        let sentence = format!("there is no model {} in the folder", quote(name));
        return Err(Error::with_kind(ErrorKind::NotFound, sentence));
    };
    let first = PathBuf::from(path);
    let owner = first.parent().unwrap_or(folder);
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|status| status.is_symlink());
    if owner != folder && is_link(owner) {
        return Err(refused(format!("{} is a link, and what it leads to is not changed", owner.display())));
    }
    let split =
        first.file_name().and_then(|file| file.to_str()).and_then(|file| file.split_once("-00001-of-"));
    let Some((stem, count)) = split.filter(|(_, rest)| rest.ends_with(".gguf")) else {
        return Ok(vec![first]);
    };
    let parts: u32 = count.trim_end_matches(".gguf").parse().unwrap_or(1);
    let part = |number: u32| owner.join(format!("{stem}-{number:05}-of-{count}"));
    Ok((1..=parts.min(1000)).map(part).filter(|path| path.symlink_metadata().is_ok()).collect())
}

/// Removes a model. A link is removed, not what it leads to.
///
/// # Errors
/// When there is no such model, or it cannot be removed.
pub fn remove(folder: &Path, name: &str) -> Result<()> {
    for path in entries_of(folder, name)? {
        remove_entry(&path).map_err(|error| failed(&path, "be removed", &error))?;
    }
    let Some((organization, _)) = name.split_once('/') else { return Ok(()) };
    // A folder with other models stays.
    let _ = fs::remove_dir(folder.join(organization));
    Ok(())
}

/// Removes a file, a link, or a folder without following links in it.
pub fn remove_entry(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Gives a model a second name: its files get a second name each (hard links), and no bytes are copied.
///
/// # Errors
/// When there is no such model, the name is none or taken, or the model has links.
pub fn copy(folder: &Path, source: &str, destination: &str) -> Result<()> {
    check_name(destination)?;
    let entries = entries_of(folder, source)?;
    if entries_of(folder, destination).is_ok() {
        return Err(refused(format!("there is a model {} already: delete it first", quote(destination))));
    }
    let own = [folder.join(destination), folder.join(format!("{destination}.gguf"))];
    if let Some(taken) = own.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(refused(format!("{} is there already: choose another name", taken.display())));
    }
    let first = &entries[0];
    let status = fs::symlink_metadata(first).map_err(|error| failed(first, "be read", &error))?;
    if status.is_symlink() {
        return Err(refused(format!("{} is a link: copy what it leads to", first.display())));
    }
    if status.is_dir() {
        return add_folder(folder, destination, &files_of(first)?);
    }
    add_files(folder, destination, &entries)
}

/// The files at the top of a model's folder.
fn files_of(model: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(model).map_err(|error| failed(model, "be read", &error))? {
        let path = entry.map_err(|error| failed(model, "be read", &error))?.path();
        let status = fs::symlink_metadata(&path).map_err(|error| failed(&path, "be read", &error))?;
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        match name {
            Some(name) if status.is_file() => files.push((name, path)),
            Some(name) if name.starts_with('.') || status.is_dir() => {}
            _ => return Err(refused(format!("{} is no plain file: copy the model by hand", path.display()))),
        }
    }
    Ok(files)
}

/// Adds a model of these files in a folder of its own, each under its name. One of the same name is replaced.
///
/// # Errors
/// When the file system fails, or has no hard links.
pub fn add_folder(folder: &Path, name: &str, files: &[(String, PathBuf)]) -> Result<()> {
    let target = target(folder, name, "")?;
    let draft = draft_of(&target);
    // What an earlier call left behind.
    let _ = remove_entry(&draft);
    create(&draft)?;
    for (name, path) in files {
        link(path, &draft.join(name))?;
    }
    if target.symlink_metadata().is_ok() {
        // A folder of an organization, or a file of the operator, stays.
        if !target.join("config.json").is_file() {
            let _ = remove_entry(&draft);
            return Err(refused(format!(
                "{} is there already and is no model: choose another name",
                target.display()
            )));
        }
        remove_entry(&target).map_err(|error| failed(&target, "be replaced", &error))?;
    }
    fs::rename(&draft, &target).map_err(|error| failed(&target, "be written", &error))
}

/// Adds a model of one GGUF file, or of one in parts, in their order. One of the same name is replaced.
///
/// # Errors
/// As [`add_folder`].
pub fn add_files(folder: &Path, name: &str, files: &[PathBuf]) -> Result<()> {
    for (at, path) in files.iter().enumerate() {
        let ending = match files.len() {
            1 => ".gguf".to_owned(),
            count => format!("-{:05}-of-{count:05}.gguf", at + 1),
        };
        let target = target(folder, name, &ending)?;
        let draft = draft_of(&target);
        let _ = remove_entry(&draft);
        link(path, &draft)?;
        fs::rename(&draft, &target).map_err(|error| failed(&target, "be written", &error))?;
        // Renaming a name over another one of the same file does nothing.
        let _ = remove_entry(&draft);
    }
    Ok(())
}

/// Where a model of this name lies. The folder of its organization is created.
fn target(folder: &Path, name: &str, ending: &str) -> Result<PathBuf> {
    check_name(name)?;
    if let Some((organization, _)) = name.split_once('/') {
        let owner = folder.join(organization);
        match fs::symlink_metadata(&owner) {
            Ok(status) if status.is_dir() && !owner.join("config.json").exists() => {}
            Ok(_) => return Err(refused(format!("{} is no folder of an organization", owner.display()))),
            Err(_) => create(&owner)?,
        }
    }
    Ok(folder.join(format!("{name}{ending}")))
}

/// The name of an entry until it is complete.
fn draft_of(target: &Path) -> PathBuf {
    let file = target.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    target.with_file_name(format!("{DRAFT}{file}"))
}

fn create(folder: &Path) -> Result<()> {
    let created = fs::DirBuilder::new().mode(0o755).create(folder);
    created.map_err(|error| failed(folder, "be created", &error))
}

fn link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to).map_err(|error| failed(to, "be linked", &error))
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{} cannot {what}: {error}", path.display()))
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("girih-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("models")).unwrap();
        folder
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["a", "org/name", "org/Qwen3-0.6B-GGUF:Q8_0", "a.b_c+d"] {
            check_name(name).unwrap();
        }
        for name in
            ["", "/a", "a/", "../a", "a/../b", "a/b/c", ".a", "org/.a", "-a", "a b", "a\\b", "ä", "a\n"]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name(&"a".repeat(201)).is_err());
        assert!(check_length(&"a".repeat(201)).is_err() && check_length(&"a".repeat(200)).is_ok());
    }

    #[test]
    fn a_model_is_copied_and_removed_with_all_its_files() {
        let base = folder("copy");
        let models = base.join("models");
        fs::create_dir(models.join("tom")).unwrap();
        for file in
            ["tom/config.json", "tom/model.safetensors", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
        {
            fs::write(models.join(file), vec![1; 5000]).unwrap();
        }
        let used = used_bytes(&models).unwrap();
        assert!(used >= 20_000, "{used}");
        copy(&models, "tom", "org/lily").unwrap();
        copy(&models, "a", "org/b:Q4_0").unwrap();
        assert_eq!(fs::read(models.join("org/lily/model.safetensors")).unwrap().len(), 5000);
        let names = || -> Vec<String> {
            let models = model_folder::models(&models).unwrap();
            models.into_iter().map(|model| model.name).collect()
        };
        assert_eq!(names(), ["a", "org/b:Q4_0", "org/lily", "tom"]);
        // The folders are new, but no bytes.
        assert!(used_bytes(&models).unwrap() < used + 20_000);
        assert!(copy(&models, "tom", "a").unwrap_err().to_string().contains("already"));
        // A folder of an organization, a file that is no model, and the inside of a model stay.
        fs::write(models.join("girih.toml"), "").unwrap();
        for taken in ["org", "girih.toml", "tom/b"] {
            assert!(copy(&models, "tom", taken).is_err(), "{taken}");
        }
        assert!(models.join("org/lily").is_dir() && models.join("girih.toml").is_file());
        assert!(copy(&models, "tom", "../tom").is_err() && copy(&models, "nobody", "b").is_err());
        remove(&models, "a").unwrap();
        remove(&models, "org/lily").unwrap();
        assert_eq!(names(), ["org/b:Q4_0", "tom"]);
        remove(&models, "org/b:Q4_0").unwrap();
        assert!(!models.join("org").exists(), "it was empty");
        assert_eq!(remove(&models, "a").unwrap_err().kind(), ErrorKind::NotFound);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn what_links_lead_to_stays() {
        let base = folder("links");
        let models = base.join("models");
        for outside in ["tom", "org/lily"] {
            fs::create_dir_all(base.join(outside)).unwrap();
            fs::write(base.join(outside).join("config.json"), "{}").unwrap();
        }
        fs::write(base.join("a.gguf"), "a").unwrap();
        symlink(base.join("tom"), models.join("tom")).unwrap();
        symlink(base.join("org"), models.join("org")).unwrap();
        symlink(base.join("a.gguf"), models.join("a.gguf")).unwrap();
        fs::create_dir(models.join("mary")).unwrap();
        fs::write(models.join("mary/config.json"), "{}").unwrap();
        symlink(base.join("a.gguf"), models.join("mary/weights")).unwrap();
        for name in ["tom", "a", "mary"] {
            assert!(copy(&models, name, "b").is_err(), "{name}");
        }
        assert!(copy(&models, "mary", "org/b").is_err(), "org leads elsewhere");
        assert!(remove(&models, "org/lily").unwrap_err().to_string().contains("is a link"));
        for name in ["tom", "a", "mary"] {
            remove(&models, name).unwrap();
        }
        for kept in ["tom/config.json", "org/lily/config.json", "a.gguf"] {
            assert!(base.join(kept).exists(), "{kept}");
        }
        assert!(!base.join("org/b").exists());
        fs::remove_dir_all(base).unwrap();
    }
}
