//! Finds and opens the files of a container.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};
use serde::Deserialize;

use crate::container::{Container, ContainerKind, HeaderContents, Shard, TensorInfo};
use crate::folder::SAFETENSORS_INDEX;
use crate::iebs::{HEADER_BYTES, SparseShape};
use crate::limits::FileLimits;
use crate::metadata::Metadata;
use crate::outside::read_required;
use crate::q4nx::Q4NX_FILE;
use crate::quote::{quote, shorten, shorten_parse};
use crate::safetensors::UniqueMap;
use crate::source::ByteSource;
use crate::sparse_blocks::{BlockedMatrix, SparseLayout};
use crate::split_name::SplitName;
use crate::{gguf, iebin, iebin_overlay, q4nx, safetensors, sparse_blocks};

const SAFETENSORS: &str = "model.safetensors";

impl Container {
    /// Opens the container at `path` and checks its headers.
    ///
    /// `path` is a `.safetensors`, `.gguf` or `.q4nx` file, or a folder. Any file of a
    /// split GGUF opens all of them. A `.iebs` file is a container of one matrix with the name of the file. A folder is searched for
    /// `model.safetensors`, `model.safetensors.index.json`, `model.ie.json`, `model.q4nx` and
    /// one GGUF model, in this order.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::NotFound`] when `path` does not exist. When a file is
    /// missing, is malformed, exceeds one of the `limits`, or has a tensor in a format
    /// that girih does not read.
    pub fn open(path: &Path, limits: &FileLimits) -> Result<Container> {
        let status = path.metadata().map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Other,
            };
            Error::with_kind(kind, format!("cannot be opened: {error}")).of(path.display())
        })?;
        if status.is_dir() {
            return open_folder(path, limits);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => open_files(ContainerKind::Safetensors, vec![path.to_owned()], limits),
            Some("gguf") => open_gguf(path, limits),
            Some("q4nx") => open_files(ContainerKind::Q4nx, vec![path.to_owned()], limits),
            Some("iebs") => open_iebs(path).map_err(|error| error.of(path.display())),
            _ => Err(Error::new("is neither a folder nor a .safetensors, .gguf, .q4nx or .iebs file")
                .of(path.display())),
        }
    }

    /// Opens `bytes` as a container of one file, called `name` in errors.
    ///
    /// # Errors
    /// Those of [`Container::open`].
    pub fn memory(
        kind: ContainerKind,
        name: &str,
        bytes: impl Into<Cow<'static, [u8]>>,
        limits: &FileLimits,
    ) -> Result<Container> {
        let source = ByteSource::memory(bytes);
        let mut container = Container::empty(kind);
        let contents = parse(kind, &source, limits).map_err(|error| error.of(name))?;
        add_file(&mut container, Shard { path: PathBuf::from(name), source }, contents, limits)?;
        Ok(container)
    }
}

fn open_folder(folder: &Path, limits: &FileLimits) -> Result<Container> {
    let (whole, index) = (folder.join(SAFETENSORS), folder.join(SAFETENSORS_INDEX));
    if whole.exists() {
        return open_files(ContainerKind::Safetensors, vec![whole], limits);
    }
    if index.exists() {
        return open_indexed(folder, &index, limits);
    }
    if folder.join(iebin::MANIFEST).symlink_metadata().is_ok() {
        return open_iebin(folder, limits);
    }
    let tiles = folder.join(Q4NX_FILE);
    if tiles.exists() {
        return open_files(ContainerKind::Q4nx, vec![tiles], limits);
    }
    let models = gguf_models(folder).map_err(|error| error.of(folder.display()))?;
    match models.as_slice() {
        [] => Err(Error::new(format!(
            "contains no {SAFETENSORS}, no {SAFETENSORS_INDEX}, no {}, no {Q4NX_FILE} and no .gguf file",
            iebin::MANIFEST
        ))
        .of(folder.display())),
        [model] => open_gguf(&folder.join(model), limits),
        _ => {
            let sentence = format!(
                "contains {} models ({}); pass the path of one",
                models.len(),
                shorten(models.join(", "))
            );
            Err(Error::new(sentence).of(folder.display()))
        }
    }
}

/// The names of the GGUF models in `folder`, sorted; a split model has the name of its first file.
fn gguf_models(folder: &Path) -> Result<Vec<String>> {
    let unreadable = |error| Error::new(format!("cannot be listed: {error}"));
    let mut names = Vec::new();
    for entry in folder.read_dir().map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let Some(name) = name.to_str().filter(|name| !is_projector(name)) else { continue };
        let Some(stem) = name.strip_suffix(".gguf") else { continue };
        if SplitName::of(stem).is_none_or(|split| split.number == 1) {
            names.push(format!("{stem}.gguf"));
        }
    }
    names.sort();
    Ok(names)
}

/// Whether a file is the image tower of a model, by its name, such as `mmproj-model-F16.gguf`.
pub fn is_projector(name: &str) -> bool {
    name.ends_with(".gguf") && name.to_ascii_lowercase().contains("mmproj")
}

/// The image towers in `folder`, sorted: files `mmproj-….gguf`, as llama.cpp's converter names them.
///
/// # Errors
/// When the folder cannot be listed.
pub fn projector_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error| Error::new(format!("cannot be listed: {error}")).of(folder.display());
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if name.to_str().is_some_and(is_projector) {
            files.push(folder.join(name));
        }
    }
    files.sort();
    Ok(files)
}

/// Opens a block-sparse matrix of f32 as the only tensor of a container.
fn open_iebs(path: &Path) -> Result<Container> {
    let source = ByteSource::open(path)?;
    let (shape, [list, end]) = SparseShape::of_file(&source)?;
    let [rows, columns, height, width, blocks] =
        [shape.rows, shape.cols, shape.block_rows, shape.block_cols, shape.blocks].map(|size| size as usize);
    let layout = SparseLayout::new(Shape::matrix(rows, columns), DType::F32, [height, width])?;
    let too_large = |_| Error::new(format!("has {end} bytes, which exceed the address space"));
    let bytes = usize::try_from(end).map_err(too_large)?;
    let stored =
        TensorInfo { dtype: DType::U8, shape: Shape::vector(bytes), shard: 0, offset: 0, bytes: end };
    let list = HEADER_BYTES..list as usize; // before the end
    let matrix = BlockedMatrix::listed(&source, (layout, stored), list, blocks)?;
    let mut container = Container::empty(ContainerKind::Safetensors);
    container.shards.push(Shard { path: path.to_owned(), source });
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    container.put_sparse(name, matrix, 0)?;
    Ok(container)
}

fn open_files(kind: ContainerKind, paths: Vec<PathBuf>, limits: &FileLimits) -> Result<Container> {
    let mut container = Container::empty(kind);
    let count = paths.len() as u32; // bounded by the cap on shards
    for (index, path) in (0..).zip(paths) {
        let (source, contents) = open_file(kind, &path, limits).map_err(|error| error.of(path.display()))?;
        if kind == ContainerKind::Gguf {
            check_split(&contents.metadata, index, count).map_err(|error| error.of(path.display()))?;
        }
        add_file(&mut container, Shard { path, source }, contents, limits)?;
    }
    Ok(container)
}

/// Adds a file with its tensors; those that are sparse matrices are shown as such.
fn add_file(
    container: &mut Container,
    shard: Shard,
    contents: HeaderContents,
    limits: &FileLimits,
) -> Result<()> {
    let (index, path) = (container.paths().len(), shard.path.clone());
    let sparse = match container.kind() {
        ContainerKind::Safetensors => sparse_blocks::reveal(&shard.source, &contents),
        ContainerKind::Gguf | ContainerKind::Iebin | ContainerKind::Q4nx => Ok(Vec::new()),
    };
    let sparse = sparse.map_err(|error| error.of(path.display()))?;
    container.add(shard, contents, limits)?;
    let mut sparse = sparse.into_iter();
    sparse
        .try_for_each(|(name, matrix)| container.put_sparse(name, matrix, index))
        .map_err(|error| error.of(path.display()))
}

fn open_file(kind: ContainerKind, path: &Path, limits: &FileLimits) -> Result<(ByteSource, HeaderContents)> {
    let source = ByteSource::open(path)?;
    let contents = parse(kind, &source, limits)?;
    Ok((source, contents))
}

fn parse(kind: ContainerKind, source: &ByteSource, limits: &FileLimits) -> Result<HeaderContents> {
    match kind {
        ContainerKind::Safetensors => safetensors::parse(source, limits),
        ContainerKind::Q4nx => q4nx::parse(source, limits),
        ContainerKind::Gguf => gguf::parse(source, limits),
        ContainerKind::Iebin => Err(Error::new("is a folder of several files; pass the path of the folder")),
    }
}

fn open_iebin(folder: &Path, limits: &FileLimits) -> Result<Container> {
    let open = |name: &str| {
        let path = folder.join(name);
        let source = ByteSource::open(&path).map_err(|error| error.of(path.display()))?;
        Ok(Shard { path, source })
    };
    let has_overlay = folder.join(iebin_overlay::OVERLAY).symlink_metadata().is_ok();
    iebin::open(limits, &open, has_overlay)
}

/// `model.safetensors.index.json`. Its `total_size` is not compared with the
/// files: conversion tools leave stale values, and no allocation depends on it.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: UniqueMap<String>,
}

fn open_indexed(folder: &Path, index: &Path, limits: &FileLimits) -> Result<Container> {
    let json = read_required(folder, SAFETENSORS_INDEX, limits.json_bytes)?;
    let files = parse_index(&json, limits).map_err(|error| error.of(index.display()))?;
    let names: BTreeSet<&String> = files.values().collect();
    let paths = names.iter().map(|name| folder.join(name)).collect();
    let container = open_files(ContainerKind::Safetensors, paths, limits)?;
    for (tensor, name) in &files {
        let readable = container.tensors.get(tensor).map(|info| info.shard);
        let shard = readable.or_else(|| Some(container.unreadable.get(tensor)?.shard));
        let held = shard.map(|shard| &container.file_of(shard).path);
        if held != Some(&folder.join(name)) {
            let sentence = format!(
                "tensor {} is listed in {}, but that file does not contain it",
                quote(tensor),
                quote(name)
            );
            return Err(Error::new(sentence).of(index.display()));
        }
    }
    // The index may be of another version of the model than the files.
    if let Some((tensor, info)) = container.tensors.iter().find(|(tensor, _)| !files.contains_key(*tensor)) {
        let sentence =
            format!("tensor {} is not listed in the index; pass the model's own index", quote(tensor));
        return Err(Error::new(sentence).of(container.file_of(info.shard).path.display()));
    }
    Ok(container)
}

/// The file name of each tensor, from the bytes of the index; the names have no folders.
pub(crate) fn parse_index(json: &[u8], limits: &FileLimits) -> Result<BTreeMap<String, String>> {
    let index: ShardIndex = serde_json::from_slice(json).map_err(|error| {
        Error::new(format!("is not a valid index of safetensors files: {}", shorten_parse(&error)))
    })?;
    let files = index.weight_map.0;
    let names: BTreeSet<&String> = files.values().collect();
    if names.is_empty() {
        return Err(Error::new("lists no tensors"));
    }
    if names.len() as u64 > u64::from(limits.shards) {
        return Err(Error::new(format!("names {} files; the cap is {}", names.len(), limits.shards)));
    }
    match names.iter().find(|name| !is_plain(name)) {
        None => Ok(files),
        Some(name) => Err(Error::new(format!(
            "names the file {}; a plain name that ends in .safetensors is needed",
            quote(name)
        ))),
    }
}

/// Whether `name` is a file directly in the folder.
fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0'])
}

fn open_gguf(path: &Path, limits: &FileLimits) -> Result<Container> {
    let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".gguf"));
    let paths = match stem.and_then(SplitName::of) {
        None => vec![path.to_owned()],
        Some(split) if (1..=split.count).contains(&split.number) && split.count <= limits.shards => {
            split.names().map(|name| path.with_file_name(format!("{name}.gguf"))).collect()
        }
        Some(split) => {
            let sentence = format!(
                "is file {} of {}; files are numbered from 1 to their count, which is at most {}",
                split.number, split.count, limits.shards
            );
            return Err(Error::new(sentence).of(path.display()));
        }
    };
    let container = open_files(ContainerKind::Gguf, paths, limits)?;
    check_count(&container).map_err(|error| error.of(path.display()))?;
    Ok(container)
}

fn check_count(container: &Container) -> Result<()> {
    let held = container.tensors.len() as u64;
    match container.metadata.get::<u64>("split.tensors.count")? {
        Some(stated) if stated != held => Err(Error::new(format!(
            "the files contain {held} tensors, but 'split.tensors.count' is {stated}"
        ))),
        _ => Ok(()),
    }
}

/// Compares the header's split keys with the file's name. A file without these
/// keys is a whole model, so it must be the only file.
fn check_split(metadata: &Metadata, index: u32, count: u32) -> Result<()> {
    let number = metadata.get::<u32>("split.no")?.unwrap_or(0);
    let stated = metadata.get::<u32>("split.count")?.unwrap_or(1).max(1);
    if (number, stated) == (index, count) {
        return Ok(());
    }
    Err(Error::new(format!(
        "is file {} of {stated} by its header, but {} of {count} by its name; split files need names like \
         NAME-00001-of-00003.gguf",
        u64::from(number) + 1,
        index + 1
    )))
}
