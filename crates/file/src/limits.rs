//! The caps on the containers of models.
//!
//! Each is far above what real models need and low enough to be harmless; a
//! file that exceeds one is refused before anything is allocated.

use girih_tensor::{Error, Result};

use crate::quote::quote;

/// Caps on the contents of model files.
#[derive(Clone, Debug)]
pub struct FileLimits {
    /// Bytes of a safetensors or GGUF header.
    pub header_bytes: u64,
    /// Tensors in one model.
    pub tensors: u64,
    /// Key-value pairs in one GGUF header.
    pub metadata_pairs: u64,
    /// Bytes of one string in a header.
    pub string_bytes: u64,
    /// Bytes of the name of a tensor or a key.
    pub name_bytes: u64,
    /// The nesting depth of arrays in a GGUF header.
    pub nesting: u32,
    /// Files of one split model.
    pub shards: u32,
    /// Bytes of a `config.json` and of other small JSON files.
    pub json_bytes: u64,
}

impl FileLimits {
    /// The default caps.
    pub const DEFAULT: FileLimits = FileLimits {
        header_bytes: 100_000_000,
        tensors: 1_000_000,
        metadata_pairs: 100_000,
        string_bytes: 16 << 20,
        name_bytes: 1024,
        nesting: 4,
        shards: 1_000,
        json_bytes: 16 << 20,
    };
}

impl FileLimits {
    /// Checks the length of the name of a tensor or a key.
    ///
    /// # Errors
    /// When the name is longer than the cap; the error shows its beginning.
    pub(crate) fn check_name(&self, name: &str) -> Result<()> {
        let bytes = name.len() as u64;
        if bytes > self.name_bytes {
            let name = quote(name);
            let cap = self.name_bytes;
            return Err(Error::new(format!("the name {name} has {bytes} bytes; the cap is {cap}")));
        }
        Ok(())
    }
}

impl Default for FileLimits {
    fn default() -> FileLimits {
        FileLimits::DEFAULT
    }
}
