//! The option `--adapter`: adapters beside a model.

use std::path::{Path, PathBuf};

use clap::Args;
use girih::{AdapterSource, Request};
use girih_file::quote;

use crate::args::ArchArgs;
use crate::error::{Error, Result};

/// The maximum number of bytes of a name.
const MAX_NAME_BYTES: usize = 200;

/// Adapters beside a model.
#[derive(Clone, Debug, Default, Args)]
pub struct AdapterArgs {
    /// Adapter (LoRA): a folder of PEFT or a .gguf file; can be repeated where requests choose one by its name.
    #[arg(long = "adapter", value_name = "[NAME=]PATH", value_parser = adapter)]
    adapters: Vec<AdapterSource>,
}

/// An adapter from its path, with or without a name before it.
fn adapter(text: &str) -> std::result::Result<AdapterSource, String> {
    // A path may have a '=', but a name has no '/'.
    let named = text.split_once('=').filter(|(name, _)| !name.contains('/') && !Path::new(text).exists());
    let source = match named {
        Some((name, path)) => AdapterSource { name: name.to_owned(), path: path.into() },
        None => {
            let path = PathBuf::from(text);
            let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
            let name = stem.map_or_else(|| text.to_owned(), |stem| stem.to_string_lossy().into_owned());
            AdapterSource { name, path }
        }
    };
    let is_of_name = |c: char| !c.is_whitespace() && !c.is_control();
    let name = &source.name;
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || !name.chars().all(is_of_name)
        || name.ends_with(":latest")
    {
        return Err(format!(
            "{} is no name of an adapter: 1 to {MAX_NAME_BYTES} bytes without spaces, and without ':latest' at the end, \
             are needed; give one as NAME=PATH",
            quote(name)
        ));
    }
    Ok(source)
}

impl AdapterArgs {
    /// `arch` for a model with these adapters.
    pub fn beside(&self, arch: &ArchArgs) -> ArchArgs {
        ArchArgs { adapters: self.adapters.clone(), ..arch.clone() }
    }

    /// As [`AdapterArgs::beside`], for a command whose whole run uses one adapter.
    ///
    /// # Errors
    /// When several were given.
    pub fn one_beside(&self, arch: &ArchArgs) -> Result<ArchArgs> {
        match self.adapters.len() {
            0 | 1 => Ok(self.beside(arch)),
            count => Err(Error::call(format!("{count} adapters were given; this command runs with one"))),
        }
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.adapters.is_empty()
    }

    /// A request that uses the first adapter, if there is one.
    pub fn of_request(&self, request: Request) -> Request {
        match self.adapters.first() {
            Some(adapter) => request.adapter(&adapter.name),
            None => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_before_the_path_or_from_it() {
        let named = |text| adapter(text).map(|it| (it.name, it.path.display().to_string())).unwrap();
        assert_eq!(named("poet=adapters/a=b"), ("poet".to_owned(), "adapters/a=b".to_owned()));
        assert_eq!(named("adapters/a=b.gguf"), ("a=b".to_owned(), "adapters/a=b.gguf".to_owned()));
        assert_eq!(named("poet.gguf"), ("poet".to_owned(), "poet.gguf".to_owned()));
        for wrong in ["=poet", "a b=poet", "poet:latest=poet", "\n=poet"] {
            assert!(adapter(wrong).is_err(), "{wrong:?}");
        }
    }
}
