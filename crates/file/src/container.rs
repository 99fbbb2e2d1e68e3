//! The files of one model, read as one container.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use girih_tensor::{DType, Error, Result, Shape};
use sha2::{Digest as _, Sha256};

use crate::limits::FileLimits;
use crate::metadata::Metadata;
use crate::quote::quote;
use crate::source::{ByteSource, ReadAt};

/// The format of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// safetensors, with or without an index.
    Safetensors,
    /// GGUF, whole or split.
    Gguf,
    /// A folder of IEBIN, with the hub's names of tensors and its `config.json`.
    Iebin,
    /// FastFlowLM's `model.q4nx`, with the hub's names of tensors and its `config.json`.
    Q4nx,
}

/// The format, shape and location of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The storage format.
    pub dtype: DType,
    /// The shape, outermost dimension first, regardless of the file's order.
    pub shape: Shape,
    /// The index of the container's file that holds it, from 0; for one that is made of others, a number of its own above all
    /// of these.
    pub shard: usize,
    /// Its offset in that file, in bytes.
    pub offset: u64,
    /// Its size in bytes: `dtype.bytes(&shape)`.
    pub bytes: u64,
}

/// A stored tensor that girih cannot read, which only matters to models that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableTensor {
    /// The index of the container's file that holds it, from 0.
    pub shard: usize,
    /// The reason, as a part of a sentence about the tensor.
    pub why: String,
    /// The shape and the offset in the file of words of 32 bits, which the matrices of MLX have.
    pub words: Option<(Shape, u64)>,
}

/// The contents of one file's header.
#[derive(Clone, Debug, Default)]
pub struct HeaderContents {
    /// Key-value pairs.
    pub metadata: Metadata,
    /// The tensors by name; their `shard` is 0.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Further tensors, which girih cannot read; their extents are checked like those of others.
    pub unreadable: BTreeMap<String, UnreadableTensor>,
}

/// The files of one model, read as one container.
#[derive(Debug)]
pub struct Container {
    pub(crate) kind: ContainerKind,
    pub(crate) shards: Vec<Shard>,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
    pub(crate) unreadable: BTreeMap<String, UnreadableTensor>,
    /// Tensors that are made of others, each with the file of its bytes; the shard of the first is [`FIRST_MADE`].
    made: Vec<(Box<dyn MadeTensor>, usize)>,
}

/// The shard of the first tensor that is made of others: above the index of any file.
const FIRST_MADE: usize = usize::MAX / 2;

/// A tensor that is made of others while it is read.
pub(crate) trait MadeTensor: fmt::Debug + Send + Sync {
    /// Fills `into` with its bytes from `start` on, which are within its size.
    fn read(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()>;
}

/// One file of a container.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) source: ByteSource,
}

impl Container {
    /// A container without files.
    pub(crate) fn empty(kind: ContainerKind) -> Container {
        Container {
            kind,
            shards: Vec::new(),
            metadata: Metadata::new(),
            tensors: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            made: Vec::new(),
        }
    }

    /// The format of the files.
    pub fn kind(&self) -> ContainerKind {
        self.kind
    }

    /// The files, in the order of [`TensorInfo::shard`].
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// The size of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.source.length()).sum()
    }

    /// The key-value pairs of a GGUF header, or the strings under
    /// `__metadata__`; with several files, those of the first.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors that girih can read, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// The other tensors by name.
    pub fn unreadable(&self) -> &BTreeMap<String, UnreadableTensor> {
        &self.unreadable
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// When the container has no such tensor, or girih cannot read it.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        let first = self.shards.first().map_or(Path::new(""), |shard| &shard.path);
        self.tensors.get(name).ok_or_else(|| {
            let sentence = match self.unreadable.get(name) {
                Some(tensor) => format!("tensor {}: {}", quote(name), tensor.why),
                None => format!("has no tensor {}", quote(name)),
            };
            Error::new(sentence).of(first.display())
        })
    }

    /// Reads the bytes of a tensor into `into`, starting at byte `offset` of the tensor.
    ///
    /// # Errors
    /// When the range exceeds the tensor, or the file cannot be read.
    ///
    /// # Panics
    /// When `info` names a shard that this container does not have.
    pub fn read(&self, info: &TensorInfo, offset: u64, into: &mut [u8]) -> Result<()> {
        let made = info.shard.checked_sub(FIRST_MADE).map(|index| &self.made[index].0);
        let end = offset.checked_add(into.len() as u64);
        let start = info.offset.checked_add(offset);
        match (start, end) {
            (Some(start), Some(end)) if end <= info.bytes => match made {
                Some(made) => made.read(self, start, into),
                None => self.shards[info.shard].source.read_at(start, into),
            },
            _ => Err(Error::new(format!(
                "{} bytes at {offset} of a tensor exceed its size of {} bytes",
                into.len(),
                info.bytes
            ))),
        }
        .map_err(|error| match made {
            Some(_) => error,
            None => error.of(self.shards[info.shard].path.display()),
        })
    }

    /// The sha256 of the concatenated bytes of all files, in hexadecimal. It
    /// identifies the model.
    ///
    /// # Errors
    /// When a file cannot be read, or was changed since it was opened.
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
        self.check_unchanged()?;
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The identity of the files when they were opened, one line each, without reading them:
    /// device, inode, size and times. `None` for bytes in memory.
    pub fn identity(&self) -> Option<String> {
        let lines = self.shards.iter().map(|shard| shard.source.identity());
        Some(lines.collect::<Option<Vec<_>>>()?.join("\n"))
    }

    /// Checks that no file changed since it was opened. Call it after the last read.
    ///
    /// # Errors
    /// When a file was changed meanwhile.
    pub fn check_unchanged(&self) -> Result<()> {
        self.shards.iter().try_for_each(|Shard { path, source }| {
            source.check_unchanged().map_err(|error| error.of(path.display()))
        })
    }

    /// As [`Container::check_unchanged`] for a model that runs, which a further name of a file, or other permissions,
    /// do not end. A program that sets the time of a file's modification can hide a change.
    ///
    /// # Errors
    /// When a file was modified since it was opened.
    pub fn check_contents(&self) -> Result<()> {
        self.shards.iter().try_for_each(|Shard { path, source }| {
            source.check_contents().map_err(|error| error.of(path.display()))
        })
    }

    /// Whether the paths of the files still lead to them, and none has changed since it was opened.
    pub fn is_current(&self) -> bool {
        self.shards.iter().all(|shard| shard.source.is_at(&shard.path))
    }

    /// This container with only the tensors for which `name` returns a name, under those names. Of several tensors of
    /// one name, the last one remains.
    pub fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Container {
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        self.tensors = tensors.filter_map(|(old, info)| Some((name(&old)?, info))).collect();
        let unreadable = std::mem::take(&mut self.unreadable).into_iter();
        self.unreadable = unreadable.filter_map(|(old, tensor)| Some((name(&old)?, tensor))).collect();
        self
    }

    /// The length of a file, in bytes.
    pub(crate) fn file_length(&self, shard: usize) -> u64 {
        self.shards[shard].source.length()
    }

    /// The file of a tensor of this shard; for one that is made of others, the file of its stored values.
    pub(crate) fn file_of(&self, shard: usize) -> &Shard {
        &self.shards[self.file_index(shard)]
    }

    fn file_index(&self, shard: usize) -> usize {
        shard.checked_sub(FIRST_MADE).map_or(shard, |index| self.made[index].1)
    }

    /// Adds what is made of other tensors; returns its shard, in which its bytes begin at 0. `shard` is that of its stored
    /// values.
    pub(crate) fn add_made(&mut self, made: Box<dyn MadeTensor>, shard: usize) -> usize {
        self.made.push((made, self.file_index(shard)));
        FIRST_MADE + self.made.len() - 1
    }

    /// Adds the tensors of one more file.
    pub(crate) fn add(&mut self, shard: Shard, contents: HeaderContents, limits: &FileLimits) -> Result<()> {
        let index = self.shards.len();
        if index == 0 {
            self.metadata = contents.metadata;
        }
        for name in contents.tensors.keys().chain(contents.unreadable.keys()) {
            if self.tensors.contains_key(name) || self.unreadable.contains_key(name) {
                let sentence = format!("tensor {} is also in another file of this model", quote(name));
                return Err(Error::new(sentence).of(shard.path.display()));
            }
        }
        for (name, mut info) in contents.tensors {
            info.shard = index;
            self.tensors.insert(name, info);
        }
        for (name, mut tensor) in contents.unreadable {
            tensor.shard = index;
            self.unreadable.insert(name, tensor);
        }
        if (self.tensors.len() + self.unreadable.len()) as u64 > limits.tensors {
            let sentence = format!("the files up to this one have more than {} tensors", limits.tensors);
            return Err(Error::new(sentence).of(shard.path.display()));
        }
        self.shards.push(shard);
        Ok(())
    }
}

/// The shape with these extents, outermost first, if its element count fits `usize`.
pub(crate) fn shape(extents: &[u64]) -> Result<Shape> {
    let overflow = || Error::new(format!("has the shape {extents:?}, which exceeds the address space"));
    let narrow: Vec<usize> =
        extents.iter().map(|&n| n.try_into()).collect::<Result<_, _>>().map_err(|_| overflow())?;
    // A zero must not hide an overflow of the other extents, because their product
    // is used as well.
    narrow.iter().try_fold(1usize, |product, &n| product.checked_mul(n.max(1))).ok_or_else(overflow)?;
    Shape::new(&narrow)
}
