//! The server's side of the process that changes models.

use std::any::Any;
use std::path::Path;

use girih::Result;
use girih_serve::{ChangeEvent, ChangeListener, ChangeProgress, ModelChange, ModelChanger};

use super::names;
use super::pull::PullAccess;
use super::worker;
use crate::helper_process::{HelperEvent, HelperProcess};

/// The process that changes the models of a folder; it ends with this one.
#[derive(Debug)]
pub struct ModelStore(HelperProcess<ChangeProgress>);

impl ModelStore {
    /// Starts the process for a folder, in which at most `cap` bytes may lie.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(folder: &Path, cap: u64, access: PullAccess) -> Result<ModelStore> {
        let command = worker::command(folder, cap, access);
        HelperProcess::start(command, "the process that changes models").map(ModelStore)
    }
}

impl ModelChanger for ModelStore {
    fn begin(&self, change: ModelChange, listener: ChangeListener) -> Result<Box<dyn Any + Send>> {
        let changed = match &change {
            ModelChange::Pull { model } | ModelChange::Delete { model } => vec![model],
            ModelChange::Copy { source, destination } => vec![source, destination],
        };
        changed.into_iter().try_for_each(|name| names::check_length(name))?;
        let listener = move |event| {
            listener(match event {
                HelperEvent::Progress(progress) => ChangeEvent::Progress(progress),
                HelperEvent::Ended(result) => ChangeEvent::Ended(result),
            });
        };
        Ok(Box::new(self.0.begin(&change, Box::new(listener))?))
    }
}
