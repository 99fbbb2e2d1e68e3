//! Where downloads arrive: a cache of the hub for each model, in a hidden folder of the folder of models. What has
//! arrived stays for the next download of the same model, counts as used, and goes when the model is deleted.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use girih::{Error, ErrorKind, Result};
use girih_file::{SplitName, quote};
use girih_hub::{CachedModel, HubEnv, ModelId, Snapshot};

use super::names;
use super::place::{self, NewFiles};
use crate::model_folder;

/// The hidden folder.
const ARRIVALS: &str = ".girih-hub";

/// How the name of a cache begins that is being removed.
const REMOVED: &str = ".removed-";

/// The maximum number of models that there are after a download or a copy.
const MAX_MODELS: usize = 128;

/// The cache of a model; `None` if no download has such a name.
pub fn cache(folder: &Path, name: &str) -> Option<PathBuf> {
    let is_id = name.contains('/') && names::check_name(name).is_ok();
    is_id.then(|| folder.join(ARRIVALS).join(name))
}

/// Checks that there is room for a model of this name, if it is a new one.
///
/// # Errors
/// When the folder has too many models, or cannot be read.
pub fn check_count(folder: &Path, name: &str) -> Result<()> {
    let models =
        model_folder::models(folder).map_err(|error| Error::with_kind(ErrorKind::Other, error.sentence()))?;
    let mut names = all(folder);
    names.extend(models.into_iter().map(|model| model.name));
    names.remove(name);
    if names.len() < MAX_MODELS {
        return Ok(());
    }
    let sentence = format!(
        "there are {} models, begun downloads included, and clients may have {MAX_MODELS}: delete some",
        names.len()
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

/// The names of the models whose download has begun.
fn all(folder: &Path) -> BTreeSet<String> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let organizations = entries(folder.join(ARRIVALS));
    let of =
        organizations.flat_map(|owner| entries(owner.path()).map(move |entry| (owner.file_name(), entry)));
    let names =
        of.filter_map(|(owner, entry)| Some(format!("{}/{}", owner.to_str()?, entry.file_name().to_str()?)));
    names.filter(|name| names::check_name(name).is_ok()).collect()
}

/// Takes a model's cache away, to be removed; `None` if there is none.
///
/// # Errors
/// When the file system fails.
pub fn take(folder: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let Some(cache) = cache(folder, name) else { return Ok(None) };
    let taken = folder.join(ARRIVALS).join(format!("{REMOVED}{}", name.replace('/', "--")));
    match fs::remove_dir_all(&taken) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::rename(&cache, &taken) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(()) => {
            // Other models of the organization stay.
            let _ = cache.parent().map(fs::remove_dir);
            Ok(Some(taken))
        }
    }
}

/// Removes the cache of a model if no bytes of it have arrived.
pub fn remove_if_empty(folder: &Path, name: &str) {
    let Some(cache) = cache(folder, name) else { return };
    let has_bytes = |models: Vec<CachedModel>| models.iter().any(|model| model.bytes > 0);
    if girih_hub::list(&HubEnv::new(cache, "")).is_ok_and(|models| !has_bytes(models))
        && let Ok(Some(taken)) = take(folder, name)
    {
        // What stays is empty, and the next call removes it.
        let _ = fs::remove_dir_all(taken);
    }
}

/// Gives the files of a model that has arrived their names in the folder of models, in place of a model of the same
/// name, and removes what older downloads of it have left.
///
/// # Errors
/// When not all has arrived, or the file system fails.
pub fn publish(folder: &Path, name: &str) -> Result<()> {
    let cache = cache(folder, name).ok_or_else(|| {
        Error::with_kind(ErrorKind::Refused, format!("{} is no id of a model on the hub", quote(name)))
    })?;
    let (id, hub) = (ModelId::parse(name)?, HubEnv::new(cache, ""));
    let snapshot = girih_hub::find(&id, &hub)?;
    place::add(folder, name, &files_of(&snapshot)?)?;
    // The model is there. What stays counts as used, and the next download of it tries again.
    let _ = girih_hub::keep_only(&id, &snapshot.commit, &hub);
    Ok(())
}

/// The files of a snapshot. Its entries are links to blobs, which have passed their check.
fn files_of(snapshot: &Snapshot) -> Result<NewFiles> {
    let Some(first) = &snapshot.gguf else {
        let mut files = Vec::new();
        add_files(&snapshot.folder, "", &mut files)?;
        return Ok(NewFiles::Folder(files));
    };
    let stem = first.file_stem().and_then(|stem| stem.to_str()).and_then(SplitName::of);
    let parts = match stem {
        Some(split) => split.names().map(|part| first.with_file_name(format!("{part}.gguf"))).collect(),
        None => vec![first.clone()],
    };
    Ok(NewFiles::Gguf(parts.iter().map(|part| real(part)).collect::<Result<_>>()?))
}

/// Adds the files of a folder and of the folders in it, such as that of a pooling module, by name.
fn add_files(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        let Some(file) = path.file_name().and_then(|file| file.to_str()) else { continue };
        if path.is_file() {
            files.push((format!("{prefix}{file}"), real(&path)?));
        } else if prefix.is_empty() {
            add_files(&path, &format!("{file}/"), files)?;
        }
    }
    Ok(())
}

/// The file to which a link leads.
fn real(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::with_kind(ErrorKind::Other, format!("{} cannot be read: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_a_model_is_its_own() {
        let temporary = tempfile::tempdir().unwrap();
        let base = temporary.path();
        for name in ["org/a", "org/a:Q4_0"] {
            let blobs = cache(base, name).unwrap().join("models--org--a/blobs");
            fs::create_dir_all(&blobs).unwrap();
            fs::write(blobs.join("x.girih-partial"), name).unwrap();
        }
        for none in ["a", "../a", "org/../a", "org"] {
            assert_eq!(cache(base, none), None, "{none}");
            assert_eq!(take(base, none).unwrap(), None, "{none}");
        }
        assert!(take(base, "org/a:Q4_0").unwrap().is_some_and(|taken| taken.is_dir()));
        assert_eq!(take(base, "org/a:Q4_0").unwrap(), None);
        remove_if_empty(base, "org/a");
        assert!(cache(base, "org/a").unwrap().is_dir(), "it has bytes");
        fs::create_dir_all(cache(base, "other/b").unwrap().join("models--other--b/blobs")).unwrap();
        remove_if_empty(base, "other/b");
        assert!(!base.join(ARRIVALS).join("other").exists());
    }

    #[test]
    fn clients_may_have_a_limited_number_of_models() {
        let temporary = tempfile::tempdir().unwrap();
        let base = temporary.path();
        fs::create_dir_all(cache(base, "org/begun").unwrap()).unwrap();
        (1..MAX_MODELS - 1).for_each(|at| fs::write(base.join(format!("{at}.gguf")), "").unwrap());
        check_count(base, "new").unwrap();
        fs::write(base.join("last.gguf"), "").unwrap();
        assert!(check_count(base, "new").unwrap_err().to_string().contains("there are 128 models"));
        check_count(base, "last").and_then(|()| check_count(base, "org/begun")).unwrap();
    }
}
