//! A folder of models that may change while the server runs.

use std::fmt::Debug;

use girih::Result;

use crate::served_model::ServedModel;

/// A model of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its id in the APIs.
    pub name: String,
    /// Changes with the model's files and options, so that a model that was replaced is opened again.
    pub version: String,
}

/// A folder of models that may change while the server runs. It is read again when a request names a model that is
/// not known, and when the models are listed.
pub trait ModelFolder: Debug + Send + Sync {
    /// The models that are there now, without those that could not be opened and have not changed since. Each has
    /// another name.
    ///
    /// # Errors
    /// When the folder cannot be read: then the models stay as they were.
    fn entries(&self) -> Result<Vec<FolderEntry>>;

    /// Opens a model to check it; `None` if it cannot be served, which the operator is told. Its
    /// [`version`](ServedModel::version) is the entry's.
    fn open(&self, entry: &FolderEntry) -> Option<ServedModel>;

    /// Why a model that is there now cannot be served, if [`open`](ModelFolder::open) has found that. The sentence is
    /// for clients.
    fn refusal(&self, name: &str) -> Option<String>;
}
