//! Files of models in their folder: where they are, and how they are added, removed and given a second name. Nothing
//! outside the folder is changed, and no link is followed to change what it leads to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use girih::{Error, ErrorKind, Result};
use girih_file::{SplitName, quote};

use super::names::check_target;
use crate::model_folder::model_entry;

/// The maximum number of entries that are counted.
const MAX_ENTRIES: usize = 100_000;

/// How the name of an entry begins that is not complete yet.
const DRAFT: &str = ".girih-draft-";

/// How the name of an entry begins that is being replaced.
const REPLACED: &str = ".girih-replaced-";

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

/// All that has the name of a model: its folder or file, the parts of one in parts, and what is left out because it
/// has the same name. What is opened comes first among the parts of one model.
///
/// # Errors
/// When the folder cannot be read, or that of the model's organization is a link.
pub fn entries_of(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let (owner, own) = match name.split_once('/') {
        None => (folder.to_owned(), name),
        // Such a folder has no models.
        Some((owner, _)) if owner.is_empty() || owner.starts_with('.') => return Ok(Vec::new()),
        Some((owner, own)) => (folder.join(owner), own),
    };
    let is_organization = owner == *folder || owner.is_dir() && !owner.join("config.json").is_file();
    if !is_organization {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(&owner).map_err(|error| failed(&owner, "be read", &error))? {
        let path = entry.map_err(|error| failed(&owner, "be read", &error))?.path();
        if model_entry(&path).is_some_and(|entry| entry.name == own) {
            entries.push(path);
        }
    }
    if !entries.is_empty() && owner != *folder && is_link(&owner) {
        return Err(refused(format!("{} is a link, and what it leads to is not changed", owner.display())));
    }
    entries.sort();
    Ok(entries)
}

/// Removes a model, with all that has its name. A link is removed, not what it leads to.
///
/// # Errors
/// When there is no such model, or it cannot be removed.
pub fn remove(folder: &Path, name: &str) -> Result<()> {
    let entries = entries_of(folder, name)?;
    if entries.is_empty() {
        return Err(no_model(name));
    }
    for path in entries {
        remove_entry(&path).map_err(|error| failed(&path, "be removed", &error))?;
    }
    let Some((organization, _)) = name.split_once('/') else { return Ok(()) };
    // A folder with other models stays.
    let _ = fs::remove_dir(folder.join(organization));
    Ok(())
}

/// Removes a file, a link, or a folder without following links in it.
fn remove_entry(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Gives a model a second name: its files get a second name each (hard links), and no bytes are copied.
///
/// # Errors
/// When there is no such model, the name is none or taken, the model has links, or the folder has `cap` bytes.
pub fn copy(folder: &Path, source: &str, destination: &str, cap: u64) -> Result<()> {
    check_target(destination)?;
    let files = files_of(folder, source)?;
    if !entries_of(folder, destination)?.is_empty() {
        return Err(refused(format!("there is a model {} already: delete it first", quote(destination))));
    }
    let used = used_bytes(folder)?;
    if used >= cap {
        return Err(refused(format!("the folder has {used} bytes, and {cap} are allowed: delete models")));
    }
    add(folder, destination, &files)
}

/// The files of a model in the folder.
///
/// # Errors
/// When there is no such model, a part of it is missing, or it has links.
fn files_of(folder: &Path, name: &str) -> Result<NewFiles> {
    let entries = entries_of(folder, name)?;
    let is_opened = |path: &&PathBuf| model_entry(path).is_some_and(|entry| entry.is_opened);
    let opened = entries.iter().find(is_opened).ok_or_else(|| no_model(name))?;
    if is_link(opened) {
        return Err(refused(format!("{} is a link: copy what it leads to", opened.display())));
    }
    if opened.is_dir() {
        return Ok(NewFiles::Folder(files_in(opened)?));
    }
    let split = opened.file_stem().and_then(|stem| stem.to_str()).and_then(SplitName::of);
    let parts: Vec<PathBuf> = match split {
        None => vec![opened.clone()],
        Some(split) => split.names().map(|part| opened.with_file_name(format!("{part}.gguf"))).collect(),
    };
    match parts.iter().find(|part| !entries.contains(part) || is_link(part)) {
        Some(part) => {
            Err(refused(format!("{} is missing, or a link: copy the model by hand", part.display())))
        }
        None => Ok(NewFiles::Gguf(parts)),
    }
}

/// The files at the top of a model's folder.
fn files_in(model: &Path) -> Result<Vec<(String, PathBuf)>> {
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

/// The files of a model that is added to the folder, where they are now.
#[derive(Debug, PartialEq, Eq)]
pub enum NewFiles {
    /// Those of a folder, each with its name in it, which may be that of a file in a folder.
    Folder(Vec<(String, PathBuf)>),
    /// A GGUF file, or the parts of one in their order.
    Gguf(Vec<PathBuf>),
}

/// Adds a model of these files, which get a second name each (hard links). It takes the place of all that has its name.
///
/// # Errors
/// When the name is none, or is that of something else, or the file system fails or has no hard links.
pub fn add(folder: &Path, name: &str, files: &NewFiles) -> Result<()> {
    check_target(name)?;
    if let Some((organization, _)) = name.split_once('/') {
        create_organization(&folder.join(organization))?;
    }
    let targets: Vec<PathBuf> = match files {
        NewFiles::Folder(_) => vec![folder.join(name)],
        NewFiles::Gguf(parts) if parts.len() == 1 => vec![folder.join(format!("{name}.gguf"))],
        NewFiles::Gguf(parts) => {
            let part = |at: usize| folder.join(format!("{name}-{at:05}-of-{:05}.gguf", parts.len()));
            (1..=parts.len()).map(part).collect()
        }
    };
    let drafts: Vec<PathBuf> = targets.iter().map(|target| hidden(DRAFT, target)).collect();
    let added = replaced_by(folder, name, &targets)
        .and_then(|old| write_drafts(&drafts, files).map(|()| old))
        .and_then(|old| replace(&old, &drafts, &targets));
    if added.is_err() {
        // What is left of them is removed by the next call.
        drafts.iter().for_each(|draft| drop(remove_entry(draft)));
    }
    added
}

/// What a new model takes the place of.
///
/// # Errors
/// When something else is where it is to be.
fn replaced_by(folder: &Path, name: &str, targets: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let old = entries_of(folder, name)?;
    // A folder of an organization, or a file of the operator, stays.
    match targets.iter().find(|target| target.symlink_metadata().is_ok() && !old.contains(target)) {
        Some(taken) => Err(refused(format!(
            "{} is there already and is no model of this name: choose another name",
            taken.display()
        ))),
        None => Ok(old),
    }
}

fn write_drafts(drafts: &[PathBuf], files: &NewFiles) -> Result<()> {
    // What an earlier call left behind.
    drafts.iter().for_each(|draft| drop(remove_entry(draft)));
    match files {
        NewFiles::Gguf(parts) => parts.iter().zip(drafts).try_for_each(|(part, draft)| link(part, draft)),
        NewFiles::Folder(files) => {
            let [draft] = drafts else { return Err(Error::new("a folder has one name")) };
            create(draft)?;
            for (name, path) in files {
                let target = draft.join(name);
                match target.parent() {
                    Some(within) if !within.exists() => create(within)?,
                    _ => {}
                }
                link(path, &target)?;
            }
            Ok(())
        }
    }
}

/// Gives drafts their names, in place of what was there. If that fails, what was there comes back.
fn replace(old: &[PathBuf], drafts: &[PathBuf], targets: &[PathBuf]) -> Result<()> {
    let away: Vec<PathBuf> = old.iter().map(|path| hidden(REPLACED, path)).collect();
    let rename =
        |from: &PathBuf, to: &PathBuf| fs::rename(from, to).map_err(|error| failed(to, "be written", &error));
    away.iter().for_each(|path| drop(remove_entry(path)));
    let moved = old.iter().zip(&away).try_for_each(|(path, away)| rename(path, away));
    // The first part, under which a model is found, comes last.
    let moved = moved.and_then(|()| {
        drafts.iter().zip(targets).rev().try_for_each(|(draft, target)| rename(draft, target))
    });
    if moved.is_ok() {
        away.iter().for_each(|path| drop(remove_entry(path)));
        return Ok(());
    }
    let away = || old.iter().zip(&away).filter(|(_, away)| away.symlink_metadata().is_ok());
    for target in targets {
        // What was there stays, unless it is away: then this is a new one.
        if !old.contains(target) || away().any(|(path, _)| path == target) {
            let _ = remove_entry(target);
        }
    }
    away().for_each(|(path, away)| drop(fs::rename(away, path)));
    moved
}

/// Removes what calls have left that were ended before they were done.
pub fn remove_drafts(folder: &Path) {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let organizations = entries(folder).filter(is_folder).map(|entry| entry.path());
    for folder in organizations.chain([folder.to_owned()]) {
        for entry in entries(&folder) {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(DRAFT) || name.starts_with(REPLACED)) {
                // What stays counts as used.
                let _ = remove_entry(&entry.path());
            }
        }
    }
}

/// Creates the folder of an organization, unless it is there.
fn create_organization(owner: &Path) -> Result<()> {
    match fs::symlink_metadata(owner) {
        Ok(status) if status.is_dir() && !owner.join("config.json").exists() => Ok(()),
        Ok(_) => Err(refused(format!("{} is no folder of an organization", owner.display()))),
        Err(_) => create(owner),
    }
}

/// A hidden name beside an entry.
fn hidden(start: &str, entry: &Path) -> PathBuf {
    let file = entry.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    entry.with_file_name(format!("{start}{file}"))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|status| status.is_symlink())
}

fn create(folder: &Path) -> Result<()> {
    let created = fs::DirBuilder::new().mode(0o755).create(folder);
    created.map_err(|error| failed(folder, "be created", &error))
}

fn link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to).map_err(|error| failed(to, "be linked", &error))
}

fn no_model(name: &str) -> Error {
    Error::with_kind(ErrorKind::NotFound, format!("there is no model {} in the folder", quote(name)))
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{} cannot {what}: {error}", path.display()))
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;
    use crate::model_folder;

    /// A folder with an empty `models`.
    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("models")).unwrap();
        folder
    }

    /// The names of the models, as they are served.
    fn names(models: &Path) -> Vec<String> {
        model_folder::models(models).unwrap().into_iter().map(|model| model.name).collect()
    }

    /// Writes bytes that a file system cannot compress (Marsaglia's xorshift), so that they take their size on disk.
    fn write_noise(path: &Path, len: usize) {
        let mut number = 1u64;
        let noise = std::iter::repeat_with(|| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            number as u8
        });
        let mut file = fs::File::create_new(path).unwrap();
        file.write_all(&noise.take(len).collect::<Vec<u8>>()).unwrap();
        file.sync_all().unwrap();
    }

    const CAP: u64 = 1 << 30;

    #[test]
    fn a_model_is_copied_and_removed_with_all_its_files() {
        let temporary = folder();
        let base = temporary.path();
        let models = base.join("models");
        fs::create_dir(models.join("tom")).unwrap();
        for file in
            ["tom/config.json", "tom/model.safetensors", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
        {
            write_noise(&models.join(file), 5000);
        }
        let used = used_bytes(&models).unwrap();
        assert!(used >= 20_000, "{used}");
        copy(&models, "tom", "org/lily", CAP).unwrap();
        copy(&models, "a", "org/b:Q4_0", CAP).unwrap();
        assert_eq!(fs::read(models.join("org/lily/model.safetensors")).unwrap().len(), 5000);
        assert_eq!(names(&models), ["a", "org/b:Q4_0", "org/lily", "tom"]);
        // The folders are new, but no bytes.
        assert!(used_bytes(&models).unwrap() < used + 20_000);
        assert!(copy(&models, "tom", "a", CAP).unwrap_err().to_string().contains("already"));
        assert!(copy(&models, "tom", "c", used).unwrap_err().to_string().contains("are allowed"));
        // A folder of an organization, a file that is no model, and the inside of a model stay.
        fs::write(models.join("girih.toml"), "").unwrap();
        for taken in ["org", "girih.toml", "tom/b", "mmproj-b", "b-00001-of-00002", "org/config.json"] {
            assert!(copy(&models, "tom", taken, CAP).is_err(), "{taken}");
        }
        assert!(models.join("org/lily").is_dir() && models.join("girih.toml").is_file());
        assert!(copy(&models, "tom", "../tom", CAP).is_err() && copy(&models, "nobody", "b", CAP).is_err());
        for none in ["/tom", "../models/tom", ".", "org", "org/", "tom/config.json"] {
            assert_eq!(entries_of(&models, none).unwrap(), [] as [PathBuf; 0], "{none}");
        }
        remove(&models, "a").unwrap();
        remove(&models, "org/lily").unwrap();
        assert_eq!(names(&models), ["org/b:Q4_0", "tom"]);
        remove(&models, "org/b:Q4_0").unwrap();
        assert!(!models.join("org").exists(), "it was empty");
        assert_eq!(remove(&models, "a").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_name_with_part_numbers_in_it_is_split_at_the_last_ones() {
        let temporary = folder();
        let base = temporary.path();
        let models = base.join("models");
        let part = |number| models.join(format!("x-00001-of-00009-y-0000{number}-of-00002.gguf"));
        for number in [1, 2] {
            fs::write(part(number), "").unwrap();
        }
        fs::write(models.join("x.gguf"), "").unwrap();
        assert_eq!(names(&models), ["x", "x-00001-of-00009-y"]);
        assert_eq!(entries_of(&models, "x-00001-of-00009-y").unwrap(), [part(1), part(2)]);
        copy(&models, "x-00001-of-00009-y", "z", CAP).unwrap();
        remove(&models, "x").unwrap();
        assert_eq!(names(&models), ["x-00001-of-00009-y", "z"]);
        // A part without the others is no model, but goes with the name.
        fs::remove_file(part(1)).unwrap();
        assert!(copy(&models, "x-00001-of-00009-y", "w", CAP).is_err());
        remove(&models, "x-00001-of-00009-y").unwrap();
        assert!(!part(2).exists());
    }

    #[test]
    fn a_model_that_changes_its_form_takes_the_place_of_the_old_one() {
        let temporary = folder();
        let base = temporary.path();
        let models = base.join("models");
        let file = |name: &str| {
            fs::write(base.join(name), name).unwrap();
            base.join(name)
        };
        let whole = NewFiles::Folder(vec![
            ("config.json".to_owned(), file("config")),
            ("1_Pooling/config.json".to_owned(), file("pooling")),
        ]);
        let gguf = |parts: &[&str]| NewFiles::Gguf(parts.iter().map(|part| file(part)).collect());
        let [one, two, three] = [gguf(&["1"]), gguf(&["1", "2"]), gguf(&["3", "4", "5"])];
        let files = || -> Vec<String> {
            let entries = fs::read_dir(models.join("org")).unwrap().map(|entry| entry.unwrap().file_name());
            let mut files: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
            files.sort();
            files
        };
        let of_three = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
        for (model, expected) in [
            (&whole, &["m"][..]),
            (&one, &["m.gguf"]),
            (&three, &of_three),
            (&two, &["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
            (&three, &of_three),
            (&three, &of_three),
            (&whole, &["m"]),
        ] {
            add(&models, "org/m", model).unwrap();
            assert_eq!(files(), expected);
            assert_eq!(names(&models), ["org/m"]);
        }
        assert_eq!(fs::read_to_string(models.join("org/m/1_Pooling/config.json")).unwrap(), "pooling");
        // What is no model of this name stays, and so does the old one.
        fs::create_dir(models.join("org/m.gguf")).unwrap();
        let refused = add(&models, "org/m", &one).unwrap_err().to_string();
        assert!(refused.contains("is there already and is no model of this name"), "{refused}");
        assert!(add(&models, "org/m", &NewFiles::Gguf(vec![file("6"), base.join("none")])).is_err());
        assert_eq!(
            (files(), names(&models)),
            (vec!["m".to_owned(), "m.gguf".to_owned()], vec!["org/m".to_owned()])
        );
        // What calls have left that were killed.
        for left in [".girih-draft-a", "org/.girih-replaced-m"] {
            fs::create_dir(models.join(left)).unwrap();
        }
        remove_drafts(&models);
        assert!(!models.join(".girih-draft-a").exists() && files().len() == 2);
    }

    #[test]
    fn what_links_lead_to_stays() {
        let temporary = folder();
        let base = temporary.path();
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
            assert!(copy(&models, name, "b", CAP).is_err(), "{name}");
        }
        assert!(copy(&models, "mary", "org/b", CAP).is_err(), "org leads elsewhere");
        assert!(remove(&models, "org/lily").unwrap_err().to_string().contains("is a link"));
        for name in ["tom", "a", "mary"] {
            remove(&models, name).unwrap();
        }
        for kept in ["tom/config.json", "org/lily/config.json", "a.gguf"] {
            assert!(base.join(kept).exists(), "{kept}");
        }
        assert!(!base.join("org/b").exists());
    }
}
