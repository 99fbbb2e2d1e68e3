//! What the command line says of a simulated array: how its runtime works, for
//! which lengths programs are compiled, and where they are kept.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use girih_npu::blob::{BlobCache, DEFAULT_CACHE_BYTES};
use girih_npu::driver::{Runtime, Tell};
use girih_npu::pass::ArrayMapping;
use girih_npu::{Npu, Options};

use crate::error::{Error, Result};
use crate::input::text_file;
use crate::packed_cache::cache_home;
use crate::progress::Show;

/// The longest mapping, in bytes, that is read from a file.
const MAPPING_BYTES: u64 = 1 << 20;

/// How a model runs on an array.
#[derive(Debug, Clone, Default, Args)]
pub struct ArrayArgs {
    /// How the model is laid onto the array: a file, or a name, such as mlir-air, seed-000 or
    /// unstitched [default: mlir-air].
    #[arg(long, value_name = "FILE|NAME")]
    pub npu_mapping: Option<String>,
    /// One way in which the array's runtime works, such as values=brokered; another name lists
    /// them; may be given several times. Results do not depend on it.
    #[arg(long, value_name = "CHOICE", value_parser = choice)]
    pub npu_runtime: Vec<String>,
    /// Rows for which programs of the array are compiled besides one and --chunk, so that short
    /// prompts are padded less [default: 64,256,1024].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub npu_lengths: Option<Vec<u32>>,
    /// Positions for which programs that attend on the array are compiled, besides --context
    /// [default: 256,1024].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub npu_contexts: Option<Vec<u32>>,
    #[command(flatten)]
    pub blobs: BlobArgs,
}

impl ArrayArgs {
    /// The backend of the array of this name; where `show` is given, with what
    /// is kept of its programs.
    ///
    /// # Errors
    /// When there is no such array, or no folder for its programs.
    pub fn npu(&self, target: &str, show: Option<Show>) -> Result<Npu> {
        let usual = Options::default();
        let mut runtime = Runtime::default();
        for name in &self.npu_runtime {
            runtime = runtime.with(name)?;
        }
        let options = Options {
            runtime,
            lengths: self.npu_lengths.clone().unwrap_or(usual.lengths),
            contexts: self.npu_contexts.clone().unwrap_or(usual.contexts),
            ..usual
        };
        let npu = Npu::new(target, options)?;
        let npu = match &self.npu_mapping {
            Some(name) => npu.with_mapping(mapping(name)?),
            None => npu,
        };
        let Some(show) = show else { return Ok(npu) };
        Ok(match self.blobs.cache(show)? {
            Some(cache) => npu.with_blobs(cache, tell(show)),
            None => npu,
        })
    }
}

/// Reads a mapping: one that girih has, or else a file.
pub fn mapping(name: &str) -> Result<ArrayMapping> {
    let path = Path::new(name);
    if !path.is_file() {
        return ArrayMapping::named(name).map_err(|error| Error::call(format!("{error}, or a file")));
    }
    let text = text_file(path, MAPPING_BYTES)?;
    text.parse().map_err(|error| Error::call(format!("{name}: {error}")))
}

/// Reads the name of a choice of the runtime.
fn choice(text: &str) -> Result<String, String> {
    Runtime::default().with(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

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
    pub fn cache(&self, show: Show) -> Result<Option<BlobCache>> {
        let (named, folder) = match &self.blobs {
            Some(Blobs::Off) => return Ok(None),
            Some(Blobs::In(folder)) => (true, folder.clone()),
            None => match cache_home() {
                Some(home) => (false, home.join("girih/blobs")),
                None => return Ok(None),
            },
        };
        match BlobCache::open(&folder) {
            Ok(cache) => Ok(Some(cache.with_limit(self.blobs_limit.unwrap_or(DEFAULT_CACHE_BYTES)))),
            Err(error) if named => Err(error.into()),
            Err(error) => {
                show.note(format!("{error}; compiled programs are not kept"));
                Ok(None)
            }
        }
    }
}

/// Shows what is told.
pub fn tell(show: Show) -> Tell {
    Tell::new(move |sentence| show.note(sentence))
}
