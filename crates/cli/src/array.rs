//! What the command line says of a simulated array: where compiled programs
//! are kept.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use girih_npu::blob::{Cache, USUAL_LIMIT};
use girih_npu::driver::Tell;

use crate::error::Result;
use crate::packed_cache::cache_home;
use crate::progress::Show;

/// Where the compiled programs of an array are kept.
#[derive(Debug, Clone, Default, Args)]
pub struct BlobArgs {
    /// The folder in which compiled programs of an array are kept, so that the next start reads them,
    /// or off [default: $XDG_CACHE_HOME/girih/blobs].
    #[arg(long, value_name = "DIR")]
    pub blobs: Option<Blobs>,
    /// The most bytes of kept programs of arrays; those that were used longest ago go first
    /// [default: 1 GiB].
    #[arg(long, value_name = "BYTES")]
    pub blobs_limit: Option<u64>,
}

/// The values of `--blobs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blobs {
    /// Nowhere.
    Off,
    /// In this folder.
    In(PathBuf),
}

impl FromStr for Blobs {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Blobs, Infallible> {
        Ok(if text == "off" { Blobs::Off } else { Blobs::In(PathBuf::from(text)) })
    }
}

impl BlobArgs {
    /// The cache of blobs, if there is to be one and there is a place for it.
    ///
    /// # Errors
    /// When the folder that was named cannot be made.
    pub fn cache(&self, show: Show) -> Result<Option<Cache>> {
        let (named, folder) = match &self.blobs {
            Some(Blobs::Off) => return Ok(None),
            Some(Blobs::In(folder)) => (true, folder.clone()),
            None => match cache_home() {
                Some(home) => (false, home.join("girih/blobs")),
                None => return Ok(None),
            },
        };
        match Cache::open(&folder) {
            Ok(cache) => Ok(Some(cache.with_limit(self.blobs_limit.unwrap_or(USUAL_LIMIT)))),
            Err(error) if named => Err(error.into()),
            Err(error) => {
                show.note(format!("{error}; compiled programs are not kept"));
                Ok(None)
            }
        }
    }

    /// What was said first of these, in words.
    pub fn given(&self) -> Option<&'static str> {
        let limit = self.blobs_limit.map(|_| "--blobs-limit keeps compiled programs");
        self.blobs.as_ref().map(|_| "--blobs keeps compiled programs").or(limit)
    }
}

/// Shows what is told.
pub fn tell(show: Show) -> Tell {
    Tell::new(move |sentence| show.note(sentence))
}
