//! The options of a simulated array: its mapping and runtime, the lengths for
//! which programs are compiled, and the cache of compiled programs.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use girih_npu::blob::{BlobCache, BlobFolder, DEFAULT_CACHE_BYTES};
use girih_npu::driver::{Runtime, WarningSink};
use girih_npu::pass::ArrayMapping;
use girih_npu::{Npu, NpuOptions};

use crate::error::{Error, Result};
use crate::packed_cache::cache_home;
use crate::progress::Show;

/// How a model runs on an array.
#[derive(Debug, Clone, Default, Args)]
pub struct ArrayArgs {
    /// Mapping of the model to the array: a file, or a name such as mlir-air, seed-000 or
    /// unstitched [default: mlir-air].
    #[arg(long, value_name = "FILE|NAME")]
    pub npu_mapping: Option<String>,
    /// Setting of the array's runtime, such as values=brokered (does not affect results); an unknown
    /// one lists them all; can be repeated.
    #[arg(long, value_name = "SETTING", value_parser = runtime_setting)]
    pub npu_runtime: Vec<String>,
    /// Rows for which array programs are compiled in addition to 1 and --chunk, so that short
    /// prompts are padded less [default: 64,256,1024].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub npu_lengths: Option<Vec<u32>>,
    /// Positions for which array programs with attention are compiled in addition to --context
    /// [default: 256,1024].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub npu_contexts: Option<Vec<u32>>,
    #[command(flatten)]
    pub blobs: BlobArgs,
}

impl ArrayArgs {
    /// The backend of the array named `target`; with `show`, it uses the cache of
    /// compiled programs and reports as `show` says.
    ///
    /// # Errors
    /// When the array, the mapping or a setting is unknown.
    pub fn npu(&self, target: &str, show: Option<Show>) -> Result<Npu> {
        let defaults = NpuOptions::default();
        let mut runtime = Runtime::default();
        for name in &self.npu_runtime {
            runtime = runtime.with(name)?;
        }
        let options = NpuOptions {
            runtime,
            lengths: self.npu_lengths.clone().unwrap_or(defaults.lengths),
            contexts: self.npu_contexts.clone().unwrap_or(defaults.contexts),
            ..defaults
        };
        let npu = Npu::new(target, options)?;
        let npu = match &self.npu_mapping {
            Some(name) => npu.with_mapping(mapping(name)?),
            None => npu,
        };
        let Some(show) = show else { return Ok(npu) };
        Ok(match self.blobs.folder() {
            Some(folder) => npu.with_blobs(folder, tell(show)),
            None => npu,
        })
    }
}

/// Reads a mapping: a file, or else one of girih's own by name.
///
/// # Errors
/// When there is no such file or name, or the file is malformed.
pub fn mapping(name: &str) -> Result<ArrayMapping> {
    ArrayMapping::read(name).map_err(|error| Error::call(error.to_string()))
}

/// Checks the name of a runtime setting.
fn runtime_setting(text: &str) -> Result<String, String> {
    Runtime::default().with(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The cache of compiled programs of arrays.
#[derive(Debug, Clone, Default, Args)]
pub struct BlobArgs {
    /// Folder that keeps compiled array programs for the next start, or off
    /// [default: $XDG_CACHE_HOME/girih/blobs].
    #[arg(long, value_name = "DIR")]
    pub blobs: Option<Blobs>,
    /// Maximum size of all kept array programs; least recently used are evicted first
    /// [default: 1 GiB].
    #[arg(long, value_name = "BYTES")]
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
    fn folder(&self) -> Option<BlobFolder> {
        let (path, is_named) = match &self.blobs {
            Some(Blobs::Off) => return None,
            Some(Blobs::In(folder)) => (folder.clone(), true),
            None => (cache_home()?.join("girih/blobs"), false),
        };
        Some(BlobFolder { path, limit: self.blobs_limit.unwrap_or(DEFAULT_CACHE_BYTES), is_named })
    }

    /// The cache, if it is enabled and its folder can be created.
    ///
    /// # Errors
    /// When the folder that the user named cannot be created.
    pub fn cache(&self, show: Show) -> Result<Option<BlobCache>> {
        let Some(folder) = self.folder() else { return Ok(None) };
        Ok(folder.open(|sentence| show.note(sentence))?)
    }
}

/// Shows the compiler's reports as notes.
pub fn tell(show: Show) -> WarningSink {
    WarningSink::new(move |sentence| show.note(sentence))
}
