//! From a model's name to the files of its model and of its tokenizer.

use std::path::PathBuf;

use girih_file::{ContainerKind, companions_version};
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::ArchOptions;
use girih_model::{ModelFiles, ModelLimits};
use girih_words::{TextLimits, TextProcessor, Tokenizer};

use crate::builtin::STORIES;
use crate::open_options::{AdapterSource, OpenOptions};

/// Where a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelLocation {
    /// In the program.
    BuiltIn,
    /// On disk.
    Path(PathBuf),
}

impl ModelLocation {
    /// Finds a model by its name.
    ///
    /// # Errors
    /// When there is no such file, or the name is an id that is not in the cache.
    pub fn find(name: &str, options: &OpenOptions) -> Result<ModelLocation> {
        if name == STORIES.name {
            return Ok(ModelLocation::BuiltIn);
        }
        find_elsewhere(name, options).map(ModelLocation::Path)
    }

    /// Opens the model's facts and weights.
    ///
    /// # Errors
    /// When the files are malformed or not supported.
    pub fn files(&self, options: &OpenOptions) -> Result<ModelFiles> {
        let arch = ArchOptions {
            architectures: options.architectures.clone(),
            allow_keys: options.allow_key.clone(),
        };
        let limits = &ModelLimits::DEFAULT;
        let mut files = match self {
            ModelLocation::BuiltIn => ModelFiles::open_embedded(&STORIES, arch, limits),
            ModelLocation::Path(path) => ModelFiles::open(path, arch, limits),
        }?;
        options.pack.map_or(Ok(()), |dtype| files.quantize(dtype))?;
        if !options.adapters.is_empty() {
            check_names(&options.adapters)?;
            let open = |adapter: &AdapterSource| files.open_adapter(&adapter.path, limits);
            let adapters = options.adapters.iter().map(open).collect::<Result<_>>()?;
            files.add_adapters(adapters, limits)?;
        }
        Ok(files)
    }

    /// A text that differs when one of the model's small files does.
    pub fn companions_version(&self) -> String {
        match self {
            ModelLocation::BuiltIn => String::new(),
            ModelLocation::Path(path) if path.is_dir() => companions_version(path),
            ModelLocation::Path(path) => path.parent().map(companions_version).unwrap_or_default(),
        }
    }

    /// Opens the tokenizer and the chat template.
    ///
    /// # Errors
    /// When there is no tokenizer, or the files are malformed.
    pub fn text_processor(&self) -> Result<TextProcessor> {
        match self {
            ModelLocation::BuiltIn => {
                let tokenizer = Tokenizer::from_json(STORIES.tokenizer.as_bytes(), &TextLimits::DEFAULT)?;
                Ok(TextProcessor::new(tokenizer, None))
            }
            ModelLocation::Path(path) => TextProcessor::open(path, &TextLimits::DEFAULT),
        }
    }

    /// Opens the tokenizer and the chat template of `files`, which were opened from here;
    /// reuses the header of a GGUF file.
    ///
    /// # Errors
    /// As [`ModelLocation::text_processor`].
    pub fn text_processor_of(&self, files: &ModelFiles) -> Result<TextProcessor> {
        let container = files.weights.container();
        let has_folder = files.folder().join("tokenizer.json").exists();
        match (self, container.kind()) {
            (ModelLocation::Path(path), ContainerKind::Gguf) if !(path.is_dir() && has_folder) => {
                TextProcessor::of_gguf(container.metadata(), &TextLimits::DEFAULT)
            }
            _ => self.text_processor(),
        }
    }
}

/// The path of a model that is not built in: a path itself, or an id in the cache.
#[cfg(feature = "hub")]
fn find_elsewhere(name: &str, options: &OpenOptions) -> Result<PathBuf> {
    let endpoint = options.hub.as_ref().map_or("", |hub| hub.endpoint.as_str());
    match girih_hub::ModelReference::parse(name, &[STORIES.name], endpoint)? {
        girih_hub::ModelReference::BuiltIn(name) => Ok(PathBuf::from(name)),
        girih_hub::ModelReference::Path(path) => Ok(path),
        girih_hub::ModelReference::Id(id) => {
            let hub = options.hub.as_ref().map_err(Error::clone)?;
            let found = girih_hub::find(&id, hub)?;
            Ok(found.path().to_owned())
        }
    }
}

/// The path of a model that is not built in.
#[cfg(not(feature = "hub"))]
fn find_elsewhere(name: &str, _: &OpenOptions) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    let sentence = format!(
        "there is no file or folder '{name}': give one that exists or {}; ids of models on the hub need the \
         feature `hub`",
        STORIES.name
    );
    Err(Error::with_kind(ErrorKind::NotFound, sentence))
}

/// Checks that adapters have names by which requests can choose.
fn check_names(adapters: &[AdapterSource]) -> Result<()> {
    for (index, AdapterSource { name, .. }) in adapters.iter().enumerate() {
        let sentence = if name.is_empty() {
            "an adapter has no name; give it one".to_owned()
        } else if adapters[..index].iter().any(|other| other.name == *name) {
            format!("two adapters are named '{name}'; give each a name of its own")
        } else {
            continue;
        };
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    Ok(())
}
