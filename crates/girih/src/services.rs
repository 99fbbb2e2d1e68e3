//! What the library offers the backends that it opens: the cache folder, a store of packed
//! weights, and notes to the user.

use std::path::PathBuf;
use std::sync::Arc;

use girih_graph::backend::RowSource;
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
    tables: Option<Tables>,
}

/// The rows of a table, if it may stay in its file.
pub(crate) type Tables = Box<dyn Fn(&str) -> Option<Arc<dyn RowSource>> + Send + Sync>;

impl ModelServices {
    /// The services for the model that was opened with `options` and whose first file is `model`; a draft model shares the `control` of
    /// the model that it drafts for.
    pub fn new(options: &OpenOptions, model: Option<PathBuf>, control: Arc<LoadControl>) -> ModelServices {
        let (cache, sync) = (options.cache.clone(), options.sync.clone());
        ModelServices { cache, sync, model, control, tables: None }
    }

    /// These services, with tables that may stay in their files.
    pub fn with_tables(self, tables: Tables) -> ModelServices {
        ModelServices { tables: Some(tables), ..self }
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

    fn rows(&self, table: &str) -> Option<Arc<dyn RowSource>> {
        self.tables.as_ref()?(table)
    }

    fn note(&self, sentence: &str) {
        self.control.note(sentence.to_owned());
    }
}
