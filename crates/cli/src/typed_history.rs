//! The lines that were typed in earlier chats: a file that only its user can read, of a bounded
//! number of lines.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use girih_file::PrivateFolder;

use crate::base_folder::base_folder;
use crate::error::{Error, Result};

/// The name of the file in its folder.
const NAME: &str = "history";

/// The name under which a shorter copy of the file is written.
const SHORTENED: &str = "history.new";

/// The maximum number of lines that are kept.
pub const MAX_LINES: usize = 1000;

/// The number of lines from which on the file is shortened.
const FULL_LINES: usize = 2 * MAX_LINES;

/// The maximum number of bytes of a line; a longer one is not stored.
const LINE_BYTES: usize = 4096;

/// The maximum number of bytes of the file that are read.
const FILE_BYTES: u64 = 16 << 20;

/// The file, open to append lines.
#[derive(Debug)]
pub struct TypedHistory(File);

impl TypedHistory {
    /// Opens the history and returns its last lines, oldest first. A long file is shortened.
    ///
    /// # Errors
    /// When the file is a link, it or its folder belongs to others, or cannot be read or written; the
    /// sentence names the file.
    pub fn open() -> Result<Option<(TypedHistory, Vec<String>)>> {
        let Some(folder) = folder() else { return Ok(None) };
        let private = PrivateFolder::create(&folder)
            .map_err(|error| Error::work(format!("{}: {error}", folder.display())))?;
        let fails = |error: &dyn std::fmt::Display| Error::work(format!("{}/{error}", folder.display()));
        let unwritten = |error: io::Error| fails(&format!("{NAME}: cannot be written: {error}"));
        let mut lines = match private.file(NAME).map_err(|error| fails(&error))? {
            Some(file) => read_lines(file).map_err(|error| fails(&format!("{NAME}: {error}")))?,
            None => Vec::new(),
        };
        let is_full = lines.len() > FULL_LINES;
        lines.drain(..lines.len().saturating_sub(MAX_LINES));
        if is_full {
            private.remove(SHORTENED).map_err(unwritten)?;
            let mut file = private.new_file(SHORTENED).map_err(unwritten)?;
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            file.write_all(text.as_bytes()).map_err(unwritten)?;
            private.rename(SHORTENED, NAME).map_err(unwritten)?;
        }
        let file = private.append(NAME).map_err(unwritten)?;
        // A file that others could read stops being one before more is written to it.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(unwritten)?;
        Ok(Some((TypedHistory(file), lines)))
    }

    /// Appends a line, unless it is empty or long.
    pub fn add(&mut self, line: &str) {
        if !line.trim().is_empty() && line.len() <= LINE_BYTES && !line.contains('\n') {
            // The conversation goes on without a history.
            let _ = self.0.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// The folder of what girih keeps between its runs.
fn folder() -> Option<PathBuf> {
    Some(base_folder("XDG_STATE_HOME", ".local/state")?.join("girih"))
}

/// The lines of the file; what is not UTF-8 or too long is left out.
fn read_lines(file: File) -> std::result::Result<Vec<String>, String> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(format!("has more than {FILE_BYTES} bytes: remove it"));
    }
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| (1..=LINE_BYTES).contains(&line.len()));
    Ok(lines.filter_map(|line| String::from_utf8(line.to_vec()).ok()).collect())
}
