//! The folder of packed weights, for people and as JSON.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use girih::tools::{PackedFile, PackedFolder};
use serde_json::{Value, json};

use crate::error::Result;
use crate::loading::open_options;
use crate::output::bytes;

/// The folder of packed weights, if a cache folder is known.
///
/// # Errors
/// As [`open_options`].
pub fn packed_folder() -> Result<Option<PackedFolder>> {
    Ok(open_options()?.cache.map(|cache| PackedFolder::new(cache.join("packed"))))
}

/// The contents of the cache, for `girih doctor`.
#[derive(Debug)]
pub struct PackedStatus {
    path: PathBuf,
    files: io::Result<Vec<PackedFile>>,
    /// The default limit in bytes.
    limit: Option<u64>,
}

impl PackedStatus {
    /// The present contents; `None` if no cache folder is known.
    ///
    /// # Errors
    /// As [`packed_folder`].
    pub fn now() -> Result<Option<PackedStatus>> {
        let Some(folder) = packed_folder()? else { return Ok(None) };
        let files = folder.files();
        let limit = folder.default_limit(files.as_deref().map_or(0, bytes_of)).ok();
        Ok(Some(PackedStatus { path: folder.path().to_owned(), files, limit }))
    }

    /// The folder, the bytes, the limit and the files as JSON; unknown values are `null`.
    pub fn json(&self) -> Value {
        let seconds = |time: SystemTime| Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs());
        let row =
            |file: &PackedFile| json!({"name": file.name, "bytes": file.bytes, "used": seconds(file.used)});
        let files = self.files.as_ref().ok();
        json!({
            "path": self.path,
            "bytes": files.map(|files| bytes_of(files)),
            "limit": self.limit,
            "files": files.map(|files| files.iter().map(row).collect::<Vec<_>>()),
        })
    }

    /// The same as readable lines: one for the folder, then one for each file,
    /// most recently used first.
    pub fn lines(&self) -> Vec<String> {
        let path = self.path.display();
        let files = match &self.files {
            Ok(files) => files,
            Err(error) => return vec![format!("packed weights: {path} cannot be read: {error}")],
        };
        let limit = self.limit.map_or("unknown".to_owned(), bytes);
        let mut lines = vec![format!("packed weights: {} in {path} (limit {limit})", bytes(bytes_of(files)))];
        lines.extend(files.iter().rev().map(|file| format!("  {}  {}", file.name, bytes(file.bytes))));
        lines
    }
}

fn bytes_of(files: &[PackedFile]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}
