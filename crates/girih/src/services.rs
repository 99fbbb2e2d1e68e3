//! What the library offers the backends that it opens: the cache folder, a store of packed
//! weights, and notes to the user.

use std::path::PathBuf;
use std::sync::Arc;

use girih_graph::description::Services;
use girih_graph::store::{Store, StoreOptions};

use crate::folder::PackedFolder;
use crate::open_options::{OpenOptions, SyncProcess};
use crate::progress::LoadControl;
use crate::store::FileStore;

/// The services for one planned model.
pub(crate) struct ModelServices {
    cache: Option<PathBuf>,
    sync: SyncProcess,
    /// The first file of the model, which gives its packed weights their name.
    model: Option<PathBuf>,
    control: Arc<LoadControl>,
}

impl ModelServices {
    /// The services for the model that was opened with `options` and whose first file is `model`; a draft model shares the `control` of
    /// the model that it drafts for.
    pub fn new(options: &OpenOptions, model: Option<PathBuf>, control: Arc<LoadControl>) -> ModelServices {
        ModelServices { cache: options.cache.clone(), sync: options.sync.clone(), model, control }
    }

    /// The connection to the program.
    pub fn control(&self) -> &Arc<LoadControl> {
        &self.control
    }
}

impl Services for ModelServices {
    fn cache(&self) -> Option<PathBuf> {
        self.cache.clone()
    }

    fn store(&self, name: &str, options: StoreOptions) -> Option<Box<dyn Store>> {
        let folder = PackedFolder::new(self.cache.as_ref()?.join(name));
        let model = self.model.as_ref()?;
        let control = Arc::clone(&self.control);
        Some(Box::new(FileStore::new(folder, options, self.sync.clone(), model, control)))
    }

    fn note(&self, sentence: &str) {
        self.control.note(sentence.to_owned());
    }
}
