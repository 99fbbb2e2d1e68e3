//! The files that a model is stored in, seen as one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use girih_tensor::{DType, Error, Result, Shape};
use sha2::{Digest as _, Sha256};

use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::quote::quote;
use crate::source::{ReadAt, Source};

/// Which format a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// safetensors, with or without an index.
    Safetensors,
    /// GGUF, whole or split.
    Gguf,
}

/// How a tensor is stored, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The storage format.
    pub dtype: DType,
    /// The shape, outermost dimension first, whatever the file's own order.
    pub shape: Shape,
    /// Which of the container's files holds it, counted from 0.
    pub shard: usize,
    /// Where it starts, in bytes from the start of that file.
    pub offset: u64,
    /// Its size in bytes: `dtype.bytes(&shape)`.
    pub bytes: u64,
}

/// What the header of one file says.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Key-value pairs.
    pub metadata: Metadata,
    /// The tensors by name; their `shard` is 0.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// The files that a model is stored in, seen as one.
#[derive(Debug)]
pub struct Container {
    pub(crate) kind: Kind,
    pub(crate) shards: Vec<Shard>,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

/// One file of a container.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
}

impl Container {
    /// Which format the files have.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The files, in the order of [`TensorInfo::shard`].
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// The key-value pairs: those of a GGUF header, or the strings under
    /// `__metadata__`; of several files those of the first.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        let first = self.shards.first().map_or(Path::new(""), |shard| &shard.path);
        self.tensors
            .get(name)
            .ok_or_else(|| Error::new(format!("there is no tensor {}", quote(name))).of(first.display()))
    }

    /// Fills `into` with the bytes of a tensor from `offset` (in bytes, within the tensor) on.
    ///
    /// # Errors
    /// When the tensor has not so many bytes, or the file cannot be read.
    ///
    /// # Panics
    /// When `info` names a shard that this container does not have.
    pub fn read(&self, info: &TensorInfo, offset: u64, into: &mut [u8]) -> Result<()> {
        let shard = &self.shards[info.shard];
        let end = offset.checked_add(into.len() as u64);
        let start = info.offset.checked_add(offset);
        match (start, end) {
            (Some(start), Some(end)) if end <= info.bytes => shard.source.read_at(start, into),
            _ => Err(Error::new(format!(
                "{} bytes at {offset} of a tensor reach past its end; it has {}",
                into.len(),
                info.bytes
            ))),
        }
        .map_err(|error| error.of(shard.path.display()))
    }

    /// The sha256 of the bytes of all files, one file after another, in
    /// hexadecimal: which model it is.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn sha256(&self) -> Result<String> {
        let mut hasher = Sha256::new();
        let mut piece = vec![0; 1 << 20];
        for Shard { path, source } in &self.shards {
            let mut offset = 0;
            while offset < source.length() {
                let count = (source.length() - offset).min(piece.len() as u64) as usize;
                source.read_at(offset, &mut piece[..count]).map_err(|error| error.of(path.display()))?;
                hasher.update(&piece[..count]);
                offset += count as u64;
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// What the files are, one line for each, without reading them; nothing
    /// for bytes in memory.
    pub fn identity(&self) -> Option<String> {
        let lines = self.shards.iter().map(|shard| shard.source.identity(&shard.path));
        Some(lines.collect::<Option<Vec<_>>>()?.join("\n"))
    }

    /// Puts the tensors of one more file to those that are known.
    pub(crate) fn add(&mut self, shard: Shard, contents: Contents, limits: &Limits) -> Result<()> {
        let index = self.shards.len();
        if index == 0 {
            self.metadata = contents.metadata;
        }
        for (name, mut info) in contents.tensors {
            info.shard = index;
            if self.tensors.contains_key(&name) {
                let sentence = format!("tensor {} is in another file of this model, too", quote(&name));
                return Err(Error::new(sentence).of(shard.path.display()));
            }
            self.tensors.insert(name, info);
        }
        if self.tensors.len() as u64 > limits.tensors {
            let sentence = format!("the files up to this one have more than {} tensors", limits.tensors);
            return Err(Error::new(sentence).of(shard.path.display()));
        }
        self.shards.push(shard);
        Ok(())
    }
}

/// The shape of these extents, outermost first.
pub(crate) fn shape(extents: &[u64]) -> Result<Shape> {
    let overflow = || {
        Error::new(format!("has the shape {extents:?}, which has more elements than memory has addresses"))
    };
    let narrow: Vec<usize> =
        extents.iter().map(|&n| n.try_into()).collect::<Result<_, _>>().map_err(|_| overflow())?;
    // A zero must not hide the other extents: their product is used, too.
    narrow.iter().try_fold(1usize, |product, &n| product.checked_mul(n.max(1))).ok_or_else(overflow)?;
    Shape::new(&narrow)
}
