//! What this library offers the backends that it opens: the cache folder, a store of
//! packed weights, and notes to the user.

use std::path::PathBuf;
use std::sync::Arc;

use girih_graph::description::Host;
use girih_graph::store::{Store, StoreOptions};

use crate::folder::CacheFolder;
use crate::progress::ProgramLink;
use crate::store::FileStore;

/// The host of one planned model.
pub(crate) struct ModelHost {
    cache: Option<PathBuf>,
    /// The first file of the model, after which what is kept is named.
    model: Option<PathBuf>,
    link: Arc<ProgramLink>,
}

impl ModelHost {
    /// The host for the model whose first file is `model`.
    pub fn new(cache: Option<PathBuf>, model: Option<PathBuf>) -> ModelHost {
        ModelHost { cache, model, link: Arc::default() }
    }

    /// The connection to the program.
    pub fn link(&self) -> &Arc<ProgramLink> {
        &self.link
    }
}

impl Host for ModelHost {
    fn cache(&self) -> Option<PathBuf> {
        self.cache.clone()
    }

    fn store(&self, name: &str, options: StoreOptions) -> Option<Box<dyn Store>> {
        let folder = CacheFolder::new(self.cache.as_ref()?.join(name));
        let model = self.model.as_ref()?;
        Some(Box::new(FileStore::new(folder, options, model, Arc::clone(&self.link))))
    }

    fn note(&self, sentence: &str) {
        self.link.note(sentence.to_owned());
    }
}
