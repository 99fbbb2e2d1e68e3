//! Files of conversations: `/save` writes one, `/load` reads one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use girih_file::{create_private_file, read_small, replace_file};

use super::dialogue::Dialogue;
use crate::error::{Error, Result};
use crate::input::PROSE_BYTES;

/// The files that a chat has written or read, with what they held then.
#[derive(Debug, Default)]
pub struct SavedFiles(BTreeMap<PathBuf, Vec<u8>>);

impl SavedFiles {
    /// Writes a conversation to a new file, which only this user can read, or to one that this chat wrote or
    /// read last.
    ///
    /// # Errors
    /// When there is another file of this name, its file has changed since, or it cannot be written.
    pub fn save(&mut self, dialogue: &Dialogue, path: &Path) -> Result<()> {
        let text = dialogue.saved();
        if path.symlink_metadata().is_ok() {
            let refused =
                |clause: &str| Error::call(format!("{}: {clause}; choose another path", path.display()));
            let known = path.canonicalize().ok().and_then(|whole| self.0.get(&whole));
            let known = known.ok_or_else(|| refused("already exists"))?;
            if read_small(path, PROSE_BYTES).ok().as_ref() != Some(known) {
                return Err(refused("was changed since this chat wrote or read it"));
            }
            replace_file(path, text.as_bytes())?;
        } else {
            create_private_file(path, text.as_bytes())?;
        }
        self.know(path, text.into_bytes());
        Ok(())
    }

    /// Reads a conversation.
    ///
    /// # Errors
    /// When the file is not a regular one, is too large, or holds no conversation.
    pub fn load(&mut self, path: &Path) -> Result<Dialogue> {
        let bytes = read_small(path, PROSE_BYTES).map_err(|error| Error::call(error.to_string()))?;
        let text = std::str::from_utf8(&bytes).map_err(|error| format!("is not valid UTF-8: {error}"));
        let dialogue = text.and_then(Dialogue::load);
        let dialogue = dialogue.map_err(|clause| Error::call(format!("{}: {clause}", path.display())))?;
        self.know(path, bytes);
        Ok(dialogue)
    }

    fn know(&mut self, path: &Path, bytes: Vec<u8>) {
        // A file that is gone again is new the next time.
        if let Ok(whole) = path.canonicalize() {
            self.0.insert(whole, bytes);
        }
    }
}
