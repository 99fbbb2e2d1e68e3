//! Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685): to the product with a matrix they add that with
//! `scale · B · A`, where A has few rows and B has few columns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use girih_file::{Container, ContainerKind, TensorInfo, quote, read_required};
use girih_graph::WeightSource as _;
use girih_tensor::{DType, Error, Result, Shape};
use sha2::{Digest as _, Sha256};

use crate::adapter_config::{AdapterConfig, is_of, refused};
use crate::arch::{Arch, Facts};
use crate::json::parse_json;
use crate::limits::ModelLimits;
use crate::weight_bytes::decode;
use crate::weights::ModelWeights;

/// The files of an adapter in a folder of PEFT.
const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// What PEFT writes before the name of a module.
const PEFT_PREFIX: &str = "base_model.model.";

/// An opened and checked adapter; its matrices are read on demand.
#[derive(Debug)]
pub struct AdapterFiles {
    /// B of each weight that it changes, in the order of rows that girih's weight has.
    columns: ModelWeights,
    /// A of each of them.
    rows: BTreeMap<String, TensorInfo>,
    scales: BTreeMap<String, f32>,
    /// The tensors that it replaces, under their names in the model.
    saved: BTreeMap<String, TensorInfo>,
    config: Option<ConfigFile>,
    /// The cap on its size.
    config_bytes: u64,
}

/// The matrices of one adapter for one weight.
pub(crate) struct AdapterPair<'a> {
    files: &'a AdapterFiles,
    weight: &'a str,
    /// A, of the shape `[rank, inputs]`.
    rows: &'a TensorInfo,
    /// The format and the shape of B, `[outputs, rank]`.
    columns: (DType, [usize; 2]),
    scale: f32,
}

/// Which of the two matrices a tensor is, and the name of the tensor that both change.
fn changed(name: &str, kind: ContainerKind) -> Option<(bool, String)> {
    match kind {
        ContainerKind::Gguf => {
            let is_a = name.strip_suffix(".lora_a").map(|weight| (true, weight.to_owned()));
            is_a.or_else(|| Some((false, name.strip_suffix(".lora_b")?.to_owned())))
        }
        ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
            let name = name.strip_prefix(PEFT_PREFIX)?;
            let name = name.strip_suffix(".weight")?;
            // Some programs keep the name that PEFT gives the adapter while it trains.
            let name = name.strip_suffix(".default").unwrap_or(name);
            let is_a = name.strip_suffix(".lora_A").map(|module| (true, format!("{module}.weight")));
            is_a.or_else(|| Some((false, format!("{}.weight", name.strip_suffix(".lora_B")?))))
        }
    }
}

/// The folder of `adapter_config.json`, and the digest of its text.
type ConfigFile = (PathBuf, [u8; 32]);

/// The container of an adapter and its settings, and their file if there is one.
fn opened(
    path: &Path,
    (arch, facts): (&Arch, &Facts),
    limits: &ModelLimits,
) -> Result<(Container, AdapterConfig, Option<ConfigFile>)> {
    if path.is_dir() {
        let text = read_required(path, CONFIG, limits.file.json_bytes)?;
        let config = parse_json(&text).map_err(|error| error.of(CONFIG))?;
        let settings = AdapterConfig::peft(&config)?;
        let file = (path.to_owned(), Sha256::digest(&text).into());
        return Ok((Container::open(&path.join(TENSORS), &limits.file)?, settings, Some(file)));
    }
    let container = Container::open(path, &limits.file)?;
    if container.kind() != ContainerKind::Gguf {
        let sentence = "is no GGUF file; an adapter is its folder, with 'adapter_config.json', or a GGUF";
        return Err(Error::new(sentence));
    }
    let settings = AdapterConfig::gguf(container.metadata(), (&facts.name, &arch.matches.gguf))?;
    Ok((container, settings, None))
}

/// Tensors by the names that they have in the model.
type ByName = BTreeMap<String, TensorInfo>;

/// A of each tensor that an adapter changes, and the tensors that it replaces.
///
/// # Errors
/// When the container has something else than these and two matrices for a tensor, each once.
fn rows_of(container: &Container, settings: &AdapterConfig) -> Result<(ByName, ByName)> {
    if let Some((name, tensor)) = container.unreadable().first_key_value() {
        return Err(Error::new(format!("tensor {}: {}", quote(name), tensor.why)));
    }
    let replaces = |tensor: &&str| {
        tensor.ends_with(".weight") && settings.saved().iter().any(|words| is_of(tensor, words))
    };
    let (mut rows_of, mut columns_of, mut saved) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for (name, info) in container.tensors() {
        let Some((is_a, tensor)) = changed(name, container.kind()) else {
            if let Some(tensor) = name.strip_prefix(PEFT_PREFIX).filter(replaces) {
                saved.insert(tensor.to_owned(), info.clone());
                continue;
            }
            return Err(refused(format!(
                "has the tensor {}, which is no matrix of a low-rank adapter; girih has adapters of these only",
                quote(name)
            )));
        };
        if info.dtype.tile().0 != 1 {
            let dtype = info.dtype;
            return Err(refused(format!("has {} as {dtype}, whose blocks have several rows", quote(name))));
        }
        let is_second = match is_a {
            true => rows_of.insert(tensor, info.clone()).is_some(),
            false => !columns_of.insert(tensor),
        };
        if is_second {
            return Err(Error::new(format!("has two tensors for the matrix of {}", quote(name))));
        }
    }
    let is_missing = |words: &&String| !saved.keys().any(|tensor| is_of(tensor, words));
    if let Some(words) = settings.saved().iter().find(is_missing) {
        let sentence = format!("has no tensor of {}, which 'modules_to_save' names", quote(words));
        return Err(Error::new(sentence));
    }
    Ok((rows_of, saved))
}

/// The rank of A and B.
fn rank([a, b]: [&Shape; 2], limits: &ModelLimits) -> Result<usize> {
    let (&[rank, _], &[_, same]) = (a.extents(), b.extents()) else {
        return Err(refused("which is no matrix".to_owned()));
    };
    if rank != same || rank == 0 || rank > limits.adapter_rank {
        return Err(Error::new(format!(
            "by matrices of the ranks {rank} and {same}; equal ones from 1 to {} are needed",
            limits.adapter_rank
        )));
    }
    Ok(rank)
}

impl AdapterFiles {
    /// Opens an adapter of a model with this architecture and these facts: a folder of PEFT or a GGUF.
    ///
    /// # Errors
    /// As [`ModelFiles::open_adapter`](crate::ModelFiles::open_adapter).
    pub(crate) fn open(path: &Path, model: (&Arch, &Facts), limits: &ModelLimits) -> Result<AdapterFiles> {
        AdapterFiles::read(path, model, limits).map_err(|error| error.of(path.display()))
    }

    fn read(path: &Path, model: (&Arch, &Facts), limits: &ModelLimits) -> Result<AdapterFiles> {
        let (container, settings, config) = opened(path, model, limits)?;
        let files = AdapterFiles::of(container, &settings, model, limits)?;
        Ok(AdapterFiles { config, ..files })
    }

    /// The adapter in a container, with these settings.
    pub(crate) fn of(
        container: Container,
        settings: &AdapterConfig,
        (arch, facts): (&Arch, &Facts),
        limits: &ModelLimits,
    ) -> Result<AdapterFiles> {
        let (rows_of, saved) = rows_of(&container, settings)?;
        let kind = container.kind();
        let container =
            container.renamed(|name| changed(name, kind).filter(|(is_a, _)| !is_a).map(|(_, to)| to));
        if container.tensors().is_empty() {
            return Err(Error::new("has no matrices of a low-rank adapter"));
        }
        let one_matrix =
            |tensor: &str| Error::new(format!("changes {} by one matrix; two are needed", quote(tensor)));
        if let Some(name) = rows_of.keys().find(|name| !container.tensors().contains_key(*name)) {
            return Err(one_matrix(name));
        }
        let columns = ModelWeights::of_adapter(arch, facts, container)?;
        let (mut rows, mut scales) = (BTreeMap::new(), BTreeMap::new());
        for weight in columns.names() {
            let (Some(tensor), Some((_, shape))) = (columns.tensor_of(weight), columns.info(weight)) else {
                continue;
            };
            let a = rows_of.get(tensor).ok_or_else(|| one_matrix(tensor))?;
            let rank = rank([&a.shape, &shape], limits).map_err(|error| {
                Error::with_kind(error.kind(), format!("changes {} {error}", quote(tensor)))
            })?;
            if let Some(stated) = settings.stated_rank().filter(|stated| *stated != rank) {
                return Err(Error::new(format!(
                    "changes {} by matrices of the rank {rank}, but 'adapter_config.json' states {stated}",
                    quote(tensor)
                )));
            }
            rows.insert(weight.to_owned(), a.clone());
            scales.insert(weight.to_owned(), settings.scale(tensor, rank));
        }
        Ok(AdapterFiles { columns, rows, scales, saved, config: None, config_bytes: limits.file.json_bytes })
    }

    /// The names of the weights that it changes.
    pub fn weights(&self) -> impl Iterator<Item = &str> {
        self.rows.keys().map(String::as_str)
    }

    /// What it adds to the tensors of a model in safetensors: for each tensor, the product of its matrices times the scale.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`](girih_tensor::ErrorKind::Refused) when the model or the adapter is a GGUF, whose rows may be in another order.
    pub fn changes<'a>(&'a self, model: &'a ModelWeights) -> Result<BTreeMap<&'a str, TensorChange<'a>>> {
        for (what, container) in [("the model", model.container()), ("the adapter", self.columns.container())]
        {
            if container.kind() == ContainerKind::Gguf {
                let sentence = format!(
                    "{what} is a GGUF, which is not merged; take the folders that they were made from"
                );
                return Err(refused(sentence));
            }
        }
        let mut changes = BTreeMap::new();
        for (weight, a) in &self.rows {
            let (Some(tensor), Some(own)) = (model.tensor_of(weight), self.columns.tensor_of(weight)) else {
                return Err(refused(format!("girih does not know which tensor holds '{weight}'")));
            };
            let b = self.columns.container().tensor(own)?;
            changes.insert(tensor, TensorChange { files: self, a, b, scale: self.scales[weight] });
        }
        Ok(changes)
    }

    /// The names of the model's tensors that it replaces (`modules_to_save`).
    pub fn replaced(&self) -> impl Iterator<Item = &str> {
        self.saved.keys().map(String::as_str)
    }

    /// The numbers that take the place of a tensor of the model of this shape, if the adapter replaces it.
    ///
    /// # Errors
    /// When the tensor has another shape, or the adapter's file cannot be read.
    pub fn replacement(&self, tensor: &str, shape: &Shape) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.saved.get(tensor) else { return Ok(None) };
        if info.shape != *shape {
            let sentence = format!(
                "a tensor has the shape {shape}, but an adapter replaces it by one of {}",
                info.shape
            );
            return Err(Error::new(sentence));
        }
        self.decoded(info).map(Some)
    }

    /// The numbers of one of its tensors.
    fn decoded(&self, info: &TensorInfo) -> Result<Vec<f32>> {
        let mut bytes = vec![0; info.bytes as usize];
        self.columns.container().read(info, 0, &mut bytes)?;
        decode(info.dtype, &info.shape, &bytes)
    }

    /// What identifies its contents, without reading them; `None` for bytes in memory.
    pub fn identity(&self) -> Option<[u8; 32]> {
        self.columns.identity()
    }

    /// Checks that its files have not changed since they were opened.
    ///
    /// # Errors
    /// When one was changed meanwhile.
    pub fn check_unchanged(&self) -> Result<()> {
        self.columns.container().check_unchanged()?;
        match &self.config {
            Some((folder, _)) if !self.has_same_config() => {
                Err(Error::new("was changed while it was in use").of(folder.join(CONFIG).display()))
            }
            _ => Ok(()),
        }
    }

    fn has_same_config(&self) -> bool {
        self.config.as_ref().is_none_or(|(folder, digest)| {
            read_required(folder, CONFIG, self.config_bytes)
                .is_ok_and(|text| <[u8; 32]>::from(Sha256::digest(&text)) == *digest)
        })
    }

    /// The shape of a weight that it changes, `[outputs, inputs]`, as its matrices have it.
    pub(crate) fn shape_of(&self, weight: &str) -> Option<[usize; 2]> {
        Some([self.columns.info(weight)?.1.rows(), self.rows.get(weight)?.shape.columns()])
    }

    /// The factor of what it adds to a weight, if it changes it.
    pub(crate) fn scale(&self, weight: &str) -> Option<f32> {
        self.scales.get(weight).copied()
    }

    /// Whether the paths of its files still lead to them, and none has changed.
    pub fn is_current(&self) -> bool {
        self.columns.container().is_current() && self.has_same_config()
    }

    /// What it adds to a weight of the shape `[outputs, inputs]`.
    ///
    /// # Errors
    /// When it is of another shape.
    pub(crate) fn pair<'a>(
        &'a self,
        weight: &'a str,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Option<AdapterPair<'a>>> {
        let Some((weight, rows)) = self.rows.get_key_value(weight) else { return Ok(None) };
        let Some((dtype, shape)) = self.columns.info(weight) else { return Ok(None) };
        let columns = [shape.rows(), shape.columns()];
        if rows.shape.columns() != inputs || columns[0] != outputs {
            return Err(Error::new(format!(
                "an adapter changes '{weight}' by {} times {}; the model needs {outputs} rows and {inputs} columns",
                shape, rows.shape
            )));
        }
        Ok(Some(AdapterPair {
            files: self,
            weight,
            rows,
            columns: (dtype, columns),
            scale: self.scales[weight],
        }))
    }
}

/// What an adapter adds to a tensor.
#[derive(Debug)]
pub struct TensorChange<'a> {
    files: &'a AdapterFiles,
    a: &'a TensorInfo,
    b: &'a TensorInfo,
    scale: f32,
}

impl TensorChange<'_> {
    /// Adds it to the values of the tensor, row by row. Sums are in f64, over the rank in order.
    ///
    /// # Errors
    /// When the tensor has another shape, or the adapter's file cannot be read.
    pub fn add_to(&self, shape: &Shape, values: &mut [f32]) -> Result<()> {
        let (rank, columns) = (self.a.shape.rows(), self.a.shape.columns());
        if shape.extents() != [self.b.shape.rows(), columns] {
            return Err(Error::new(format!(
                "a tensor has the shape {shape}, but an adapter changes it by {} times {}",
                self.b.shape, self.a.shape
            )));
        }
        let (a, b) = (self.files.decoded(self.a)?, self.files.decoded(self.b)?);
        for (row, b) in values.chunks_exact_mut(columns).zip(b.chunks_exact(rank)) {
            for (column, value) in row.iter_mut().enumerate() {
                let terms = b.iter().zip(a[column..].iter().step_by(columns));
                let sum: f64 = terms.map(|(b, a)| f64::from(*b) * f64::from(*a)).sum();
                *value = (f64::from(*value) + f64::from(self.scale) * sum) as f32;
            }
        }
        Ok(())
    }
}

impl AdapterPair<'_> {
    pub fn rank(&self) -> usize {
        self.columns.1[1]
    }

    /// The narrowest format that holds both matrices, B multiplied by the scale.
    pub fn dtype(&self) -> DType {
        // A power of 2 has no bits of mantissa.
        let is_exact = self.scale.is_normal() && self.scale.to_bits() & 0x7f_ffff == 0;
        match (self.rows.dtype, self.columns.0) {
            (DType::BF16, DType::BF16) if is_exact => DType::BF16,
            (DType::F16, DType::F16) if self.scale == 1.0 => DType::F16,
            _ => DType::F32,
        }
    }

    /// These rows of A.
    pub fn a(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let info = self.rows;
        let row = info.bytes / info.shape.rows() as u64;
        let shape = info.shape.with_outermost(rows.len());
        let mut bytes = vec![0; info.dtype.bytes(&shape)?];
        self.files.columns.container().read(info, rows.start as u64 * row, &mut bytes)?;
        decode(info.dtype, &shape, &bytes)
    }

    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// These rows of `scale · B`.
    pub fn scaled_b(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let mut numbers = self.b(rows)?;
        numbers.iter_mut().for_each(|number| *number *= self.scale);
        Ok(numbers)
    }

    /// These rows of B.
    pub fn b(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let (dtype, [_, rank]) = self.columns;
        let shape = Shape::matrix(rows.len(), rank);
        let mut bytes = vec![0; dtype.bytes(&shape)?];
        let offset = dtype.matrix_bytes(rows.start, rank)?;
        self.files.columns.read(self.weight, offset as u64, &mut bytes)?;
        decode(dtype, &shape, &bytes)
    }
}
