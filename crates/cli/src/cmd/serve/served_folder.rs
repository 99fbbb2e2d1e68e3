//! A folder of models that is served: what it has now, and how its models are opened.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use girih_file::quote;
use girih_graph::{Error as LibraryError, ErrorKind};
use girih_serve::{FolderEntry, ModelFolder, ServedModel};

use super::model_options::ModelOptions;
use crate::confinement::ServerReads;
use crate::error::{Error, Result};
use crate::model_folder::{self, FolderModel};
use crate::output::print_note;

/// Opens a model of this name and path with these options, and says what it needs beside its own files; `None` if it is an
/// encoder.
pub type OpenFolderModel =
    Box<dyn Fn(&FolderModel, &ModelOptions) -> Result<Option<(ServedModel, ServerReads)>> + Send + Sync>;

/// A folder of models that is served.
pub struct ServedFolder {
    path: PathBuf,
    /// The file of their options, which is read again, too.
    options: PathBuf,
    /// The names of models outside the folder.
    taken: Vec<String>,
    open: OpenFolderModel,
    /// The models that cannot be served, by name with their version: they are opened again when they have changed.
    refused: Mutex<BTreeMap<String, String>>,
    /// What the models that were opened need beside their own files.
    reads: Mutex<ServerReads>,
}

impl Debug for ServedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedFolder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ServedFolder {
    /// A folder of models beside those whose names are `taken`.
    pub fn new(path: PathBuf, options: PathBuf, taken: Vec<String>, open: OpenFolderModel) -> ServedFolder {
        ServedFolder { path, options, taken, open, refused: Mutex::default(), reads: Mutex::default() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the models that were opened need beside their own files.
    pub fn reads(&self) -> ServerReads {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The options of models now.
    fn options(&self) -> Result<ModelOptions> {
        if self.options.exists() { ModelOptions::read(&self.options) } else { Ok(ModelOptions::default()) }
    }

    /// The models that are there now, each with its version.
    fn models(&self, options: &ModelOptions) -> Result<Vec<(FolderModel, String)>> {
        let mut models: Vec<(FolderModel, String)> = Vec::new();
        for model in model_folder::models(&self.path)? {
            let version = version(Path::new(&model.path), &options.version(&model.name));
            let is_other = |(other, _): &(FolderModel, String)| other.name == model.name;
            if self.taken.contains(&model.name) || models.iter().any(is_other) {
                let FolderModel { name, path } = &model;
                self.refuse(path, &version, || {
                    format!("left out: {path} has the name of another model, {}", quote(name))
                });
                continue;
            }
            models.push((model, version));
        }
        Ok(models)
    }

    /// Notes that a model cannot be served, and tells it unless that was told of this version.
    fn refuse(&self, key: &str, version: &str, sentence: impl FnOnce() -> String) {
        let last = self.refused().insert(key.to_owned(), version.to_owned());
        if last.is_none_or(|last| last != version) {
            print_note(sentence());
        }
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_now(&self) -> Result<Vec<FolderEntry>> {
        let models = self.models(&self.options()?)?;
        let refused = self.refused();
        let open = models.into_iter().filter(|(model, version)| refused.get(&model.name) != Some(version));
        Ok(open.map(|(FolderModel { name, .. }, version)| FolderEntry { name, version }).collect())
    }

    fn opened(&self, entry: &FolderEntry) -> Result<Option<ServedModel>> {
        let options = self.options()?;
        let models = self.models(&options)?;
        let found =
            models.iter().find(|(model, version)| model.name == entry.name && *version == entry.version);
        // It has changed meanwhile, and is looked at again.
        let Some((model, version)) = found else { return Ok(None) };
        match (self.open)(model, &options) {
            Ok(Some((served, ServerReads { models, files }))) => {
                let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
                reads.models.extend(models);
                reads.files.extend(files);
                return Ok(Some(ServedModel { version: Some(version.clone()), ..served }));
            }
            Ok(None) => self.refuse(&model.name, version, || {
                let path = &model.path;
                format!("{path} is an encoder, which stays loaded, and is left out: name it to serve it")
            }),
            Err(Error::Call(sentence) | Error::Work(sentence)) => {
                self.refuse(&model.name, version, || format!("left out: {sentence}"));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

impl ModelFolder for ServedFolder {
    fn entries(&self) -> girih::Result<Vec<FolderEntry>> {
        self.entries_now().map_err(|error| LibraryError::with_kind(ErrorKind::Other, error.sentence()))
    }

    fn open(&self, entry: &FolderEntry) -> Option<ServedModel> {
        self.opened(entry).unwrap_or_else(|error| {
            print_note(error.sentence());
            None
        })
    }
}

/// What changes when a model's files or options do: of a folder, its entries and its `config.json` count.
fn version(path: &Path, options: &str) -> String {
    let of = |path: &Path| {
        let Ok(status) = fs::metadata(path) else { return "-".to_owned() };
        format!(
            "{}:{}:{}:{}.{}",
            status.dev(),
            status.ino(),
            status.len(),
            status.mtime(),
            status.mtime_nsec()
        )
    };
    format!("{} {}{options}", of(path), of(&path.join("config.json")))
}
