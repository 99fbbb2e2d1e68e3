//! The mapping of models to a simulated array, and the cache of compiled programs, for
//! the commands of `girih npu`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use girih_graph::description::byte_count;
use girih_npu::blob::{BlobCache, BlobFolder, DEFAULT_CACHE_BYTES};
use girih_npu::driver::WarningSink;
use girih_npu::pass::ArrayMapping;

use crate::error::{Error, Result};
use crate::loading::open_options;
use crate::progress::Show;

/// Reads a mapping: a file, or else one of girih's own by name.
///
/// # Errors
/// When there is no such file or name, or the file is malformed.
pub fn mapping(name: &str) -> Result<ArrayMapping> {
    ArrayMapping::read(name).map_err(|error| Error::call(error.to_string()))
}

/// The cache of compiled programs of arrays.
#[derive(Debug, Clone, Default, Args)]
pub struct BlobArgs {
    /// Folder that keeps compiled array programs for the next start, or off
    /// [default: blobs in the cache folder].
    #[arg(long, value_name = "DIR")]
    pub blobs: Option<Blobs>,
    /// Maximum size of all kept array programs, such as 5GB, 5GiB or a number of bytes; least recently used are
    /// evicted first [default: 1 GiB].
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub blobs_limit: Option<u64>,
}

/// The values of `--blobs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blobs {
    /// Keep nothing.
    Off,
    /// Keep them in this folder.
    In(PathBuf),
}

impl FromStr for Blobs {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Blobs, Infallible> {
        Ok(if text == "off" { Blobs::Off } else { Blobs::In(PathBuf::from(text)) })
    }
}

impl BlobArgs {
    /// The folder of the cache, if it is enabled and known.
    fn folder(&self) -> Result<Option<BlobFolder>> {
        let (path, is_named) = match &self.blobs {
            Some(Blobs::Off) => return Ok(None),
            Some(Blobs::In(folder)) => (folder.clone(), true),
            None => match open_options()?.cache {
                Some(cache) => (cache.join("blobs"), false),
                None => return Ok(None),
            },
        };
        let limit = self.blobs_limit.unwrap_or(DEFAULT_CACHE_BYTES);
        Ok(Some(BlobFolder { path, limit, is_named }))
    }

    /// The cache, if it is enabled and its folder can be created.
    ///
    /// # Errors
    /// When the folder that the user named cannot be created.
    pub fn cache(&self, show: Show) -> Result<Option<BlobCache>> {
        let Some(folder) = self.folder()? else { return Ok(None) };
        Ok(folder.open(|sentence| show.note(sentence))?)
    }
}

/// Shows the compiler's reports as notes.
pub fn tell(show: Show) -> WarningSink {
    WarningSink::new(move |sentence| show.note(sentence))
}
