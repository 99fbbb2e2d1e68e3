//! Files of conversations: `/save` writes a new one, `/load` reads one.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use girih_file::read_small;

use super::dialogue::Dialogue;
use crate::error::{Error, Result};
use crate::input::PROSE_BYTES;

/// Writes a conversation to a new file.
///
/// # Errors
/// When there is a file of this name, or it cannot be written.
pub fn save(dialogue: &Dialogue, path: &Path) -> Result<()> {
    let written = File::create_new(path).and_then(|mut file| {
        file.write_all(dialogue.saved().as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Error::call(format!("{}: already exists; choose another path", path.display()))
        }
        _ => Error::work(format!("{}: cannot be written: {error}", path.display())),
    })
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
