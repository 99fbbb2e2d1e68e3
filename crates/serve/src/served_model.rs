//! A model that is served: its name, where it is, and how it runs.

use std::time::Duration;

use girih::{OpenOptions, RunOptions};

/// A model that is served.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Its id in the APIs.
    pub name: String,
    /// What [`girih::Model::open_with`] takes.
    pub source: String,
    /// How it is opened.
    pub open_options: OpenOptions,
    /// How it runs.
    pub run_options: RunOptions,
    /// Whether it is loaded by the first request that names it, and not at the start.
    pub is_loaded_on_request: bool,
    /// It is unloaded when it was not used for this time; `None` for [`ServeOptions::unload_idle`](crate::ServeOptions::unload_idle).
    pub unload_idle: Option<Duration>,
    /// The [version](crate::FolderEntry::version) of a model of [`ServeOptions::folder`](crate::ServeOptions::folder); `None` for others, which stay.
    pub version: Option<String>,
}
