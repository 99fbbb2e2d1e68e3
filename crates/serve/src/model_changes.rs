//! Changes of which models there are, as clients ask for them. Another process makes them, as the server may neither
//! write models nor connect to other machines.

use std::any::Any;
use std::fmt::Debug;

use girih::Result;
use serde::{Deserialize, Serialize};

/// A change of the models in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum ModelChange {
    /// Download a model.
    Pull {
        /// Its id on the hub.
        model: String,
    },
    /// Delete a model.
    Delete {
        /// Its id in the APIs.
        model: String,
    },
    /// Give a model a second name.
    Copy {
        /// Its id in the APIs.
        source: String,
        /// The other one.
        destination: String,
    },
}

/// How far a change is, as a line of Ollama's API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeProgress {
    /// What is done now.
    pub status: String,
    /// The digest of the file that is downloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The bytes of it that have arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}

/// What happens to a change.
#[derive(Debug)]
pub enum ChangeEvent {
    /// It has come this far.
    Progress(ChangeProgress),
    /// It has ended: the last event.
    Ended(Result<()>),
}

/// Hears the events of a change.
pub type ChangeListener = Box<dyn Fn(ChangeEvent) + Send + Sync>;

/// What changes the models of a folder.
pub trait ModelChanger: Debug + Send + Sync {
    /// Begins a change, whose events `listener` hears. Dropping the result cancels it.
    ///
    /// # Errors
    /// When nothing can be changed.
    fn begin(&self, change: ModelChange, listener: ChangeListener) -> Result<Box<dyn Any + Send>>;
}
