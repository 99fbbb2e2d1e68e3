//! A folder of models that is served: what it has now, and how its models are opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use girih_file::quote;
use girih_graph::{Error as LibraryError, ErrorKind};
use girih_serve::{FolderEntry, ModelFolder, ServedModel};
use rustix::io::Errno;

use super::model_options::ModelOptions;
use super::model_version::version;
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
    /// The models that cannot be served, by name, or by path if another one has the name: they are opened again when they
    /// have changed.
    refused: Mutex<BTreeMap<String, LeftOutModel>>,
    /// Whether the sandbox has begun, which knows only the paths that were named before.
    is_confined: AtomicBool,
    /// What the models that were opened need beside their own files.
    reads: Mutex<ServerReads>,
}

/// Why a model cannot be served.
struct LeftOutModel {
    version: String,
    sentence: String,
}

impl Debug for ServedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedFolder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ServedFolder {
    /// A folder of models beside those whose names are `taken`.
    pub fn new(path: PathBuf, options: PathBuf, taken: Vec<String>, open: OpenFolderModel) -> ServedFolder {
        let (refused, reads) = (Mutex::default(), Mutex::default());
        ServedFolder { path, options, taken, open, refused, is_confined: AtomicBool::new(false), reads }
    }

    /// Notes that the sandbox begins.
    pub fn confine(&self) {
        self.is_confined.store(true, Ordering::Relaxed);
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
        let found = model_folder::models(&self.path)?;
        let keys: BTreeSet<&str> = found.iter().flat_map(|model| [&*model.name, &*model.path]).collect();
        self.refused().retain(|key, _| keys.contains(key.as_str()));
        for model in found {
            let version = version(Path::new(&model.path), &options.version(&model.name));
            let is_other = |(other, _): &(FolderModel, String)| other.name == model.name;
            if self.taken.contains(&model.name) || models.iter().any(is_other) {
                let FolderModel { name, path } = &model;
                self.refuse(path, &version, || {
                    format!("{path} has the name of another model, {}", quote(name))
                });
                continue;
            }
            models.push((model, version));
        }
        Ok(models)
    }

    /// Notes that a model cannot be served, and tells it unless that was told of this version.
    fn refuse(&self, key: &str, version: &str, sentence: impl FnOnce() -> String) {
        if self.refused().get(key).is_some_and(|last| last.version == version) {
            return;
        }
        let sentence = sentence();
        print_note(format_args!("left out: {sentence}"));
        self.refused().insert(key.to_owned(), LeftOutModel { version: version.to_owned(), sentence });
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<String, LeftOutModel>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_now(&self) -> Result<Vec<FolderEntry>> {
        let models = self.models(&self.options()?)?;
        let refused = self.refused();
        let is_refused = |(FolderModel { name, .. }, version): &(FolderModel, String)| {
            refused.get(name).is_some_and(|left_out| left_out.version == *version)
        };
        let open = models.into_iter().filter(|model| !is_refused(model));
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
                self.refused().remove(&model.name);
                if !self.is_confined.load(Ordering::Relaxed) {
                    let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
                    reads.models.extend(models);
                    reads.files.extend(files);
                }
                return Ok(Some(ServedModel { version: Some(version.clone()), ..served }));
            }
            Ok(None) => self.refuse(&model.name, version, || {
                let path = &model.path;
                format!("{path} is an encoder, which stays loaded: name it on the command line to serve it")
            }),
            Err(Error::Call(sentence) | Error::Work(sentence)) => {
                self.refuse(&model.name, version, || self.with_sandbox_hint(sentence));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

impl ServedFolder {
    /// An error of opening a model; if it may come from the sandbox, with what helps.
    fn with_sandbox_hint(&self, sentence: String) -> String {
        let denied = format!("(os error {})", Errno::ACCESS.raw_os_error());
        if !self.is_confined.load(Ordering::Relaxed) || !sentence.contains(&denied) {
            return sentence;
        }
        let options = self.options.display();
        format!(
            "{sentence}; the sandbox knows paths of {options} from the start on: restart the server for a new one"
        )
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

    fn refusal(&self, name: &str) -> Option<String> {
        let refused = self.refused();
        // Where the folder is does not concern clients.
        Some(refused.get(name)?.sentence.replace(&format!("{}/", self.path.display()), ""))
    }
}
