//! Names of models: the user's aliases, and what a misspelled name was probably meant to be.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use girih::{BUILT_IN, Error, ErrorKind, OpenOptions};
use girih_file::{nearest, quote};
use girih_hub::ModelId;

use crate::config_file::ConfigFile;
use crate::error::Result;
use crate::output::print_note;
use crate::short_name;

/// The maximum number of a folder's files that are compared with a name.
const FILES_COMPARED: usize = 10_000;

/// The name of the model that an alias or a short name stands for; any other name as it is. What a short
/// name stands for is printed, once.
///
/// # Errors
/// When the configuration file cannot be read.
pub fn resolved(name: &str) -> Result<Cow<'_, str>> {
    if !may_be_alias(name) || Path::new(name).exists() {
        return Ok(name.into());
    }
    let file = ConfigFile::read_if_present()?;
    if let Some(model) = file.alias(name) {
        return Ok(model.to_owned().into());
    }
    let Some(repository) = short_name::repository(name) else { return Ok(name.into()) };
    static TOLD: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(repository) {
        print_note(format_args!("{name} is {repository}"));
    }
    Ok(repository.into())
}

/// The id of a model on the hub at `endpoint`, which may be given by an alias or a short name.
///
/// # Errors
/// When the configuration file cannot be read, or the name is no id; the sentence has the nearest name.
pub fn id(name: &str, endpoint: &str) -> Result<ModelId> {
    let file = ConfigFile::read_if_present()?;
    let parsed = ModelId::parse_at(&resolved(name)?, endpoint);
    parsed.map_err(|error| {
        let known = file.aliases().map(|(alias, _)| alias).chain(short_name::all());
        let meant = if may_be_alias(name) { nearest(name, known) } else { None };
        let meant = meant.map_or(String::new(), |meant| format!("; did you mean {}?", quote(meant)));
        Error::with_kind(error.kind(), format!("{error}{meant}")).into()
    })
}

/// Whether a name can be an alias: it is no path, no id and not the built-in model.
pub fn may_be_alias(name: &str) -> bool {
    let is_path = name.contains('/') || name.starts_with(['.', '~', '-']);
    !name.is_empty() && !is_path && name != BUILT_IN
}

/// An error about a model that does not exist, with the nearest name that does.
pub fn with_nearest(error: Error, name: &str, options: &OpenOptions) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    match nearest_model(name, options) {
        Some(meant) => Error::with_kind(error.kind(), format!("{error}; did you mean {}?", quote(&meant))),
        None => error,
    }
}

/// The nearest name of the built-in model, an alias, a model in the cache, or a file beside the one named.
fn nearest_model(name: &str, options: &OpenOptions) -> Option<String> {
    let cached = options.hub.as_ref().ok().and_then(|hub| girih_hub::list(hub).ok()).unwrap_or_default();
    let cached: Vec<String> = cached.into_iter().map(|model| model.repo).collect();
    let aliases = ConfigFile::read_if_present().unwrap_or_default();
    let files = files_beside(name);
    // A revision or a label says nothing about the name of the repository.
    let end = name.find(['@', ':']).unwrap_or(name.len());
    let (repo, rest) = name.split_at(end);
    let whole =
        [BUILT_IN].into_iter().chain(aliases.aliases().map(|(alias, _)| alias)).chain(short_name::all());
    let whole: Vec<&str> = whole.chain(files.iter().map(String::as_str)).collect();
    // Such a name exists, so something else is missing.
    if whole.contains(&name) || cached.iter().any(|known| known == repo) {
        return None;
    }
    let known = nearest(repo, cached.iter().map(String::as_str)).map(|repo| format!("{repo}{rest}"));
    nearest(name, whole.into_iter().chain(known.as_deref())).map(str::to_owned)
}

/// The paths of the files and folders in the folder of the file named, spelled with the same folder.
fn files_beside(name: &str) -> Vec<String> {
    let (folder, prefix) = match name.rfind('/') {
        Some(at) => (Path::new(&name[..at + 1]), &name[..at + 1]),
        None => (Path::new("."), ""),
    };
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let names = entries.take(FILES_COMPARED).flatten().map(|entry| entry.file_name());
    names.filter_map(|file| OsString::into_string(file).ok()).map(|file| format!("{prefix}{file}")).collect()
}
