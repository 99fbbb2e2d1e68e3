//! Files of conversations: `/save` writes a new one, `/load` reads one.

use std::path::Path;

use girih_file::{create_private_file, read_small};

use super::dialogue::Dialogue;
use crate::error::{Error, Result};
use crate::input::PROSE_BYTES;

/// Writes a conversation to a new file, which only this user can read.
///
/// # Errors
/// When there is a file of this name, or it cannot be written.
pub fn save(dialogue: &Dialogue, path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::call(format!("{}: already exists; choose another path", path.display())));
    }
    Ok(create_private_file(path, dialogue.saved().as_bytes())?)
}

/// Reads a conversation.
///
/// # Errors
/// When the file is not a regular one, is too large, or holds no conversation.
pub fn load(path: &Path) -> Result<Dialogue> {
    let bytes = read_small(path, PROSE_BYTES).map_err(|error| Error::call(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| format!("is not valid UTF-8: {error}"));
    let dialogue = text.and_then(|text| Dialogue::load(&text));
    dialogue.map_err(|clause| Error::call(format!("{}: {clause}", path.display())))
}
