//! The weights of a model under girih's names: which tensor of the container
//! each one is, and the re-layout that makes it ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use girih_file::{Container, Kind, TensorInfo, quote};
use girih_graph::WeightSource;
use girih_tensor::{DType, Error, Result, Shape, View};
use sha2::{Digest as _, Sha256};

use crate::arch::schema::{Arch, Relayout, Weight};
use crate::arch::{Facts, Mixer};

/// The most names that an error lists.
const LISTED: usize = 5;

/// The version of what [`Order`]s mean: it is raised when one of them hands out
/// other bytes, as bytes are kept under the source's identity.
const ORDERS: u32 = 1;

/// All weights of a model, read from its container on demand.
#[derive(Debug)]
pub struct Weights {
    container: Container,
    entries: BTreeMap<String, Entry>,
}

/// One weight.
#[derive(Debug)]
enum Entry {
    /// A tensor of the container.
    Stored { tensor: String, info: TensorInfo, order: Order },
    /// Numbers that girih computed from the facts.
    Computed(Vec<f32>),
}

/// What makes a stored tensor ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Nothing: the bytes are ours.
    AsStored,
    /// Every value plus one, as `f32`.
    AddOne,
    /// Rows of so many heads whose halves are interleaved.
    Interleaved { heads: usize },
}

impl Weights {
    /// Finds the tensor of every weight of `arch` in a model of `layers` layers.
    ///
    /// # Errors
    /// When a tensor is missing, or the container holds one that the
    /// architecture does not know: then the description is not of this model.
    pub(crate) fn resolve(arch: &Arch, container: Container, layers: usize) -> Result<Weights> {
        let mut entries = BTreeMap::new();
        let mut missing = Vec::new();
        let mut known = unused(arch, &container, layers);
        for (pattern, weight) in &arch.weights {
            for (name, tensor) in expand(pattern, names(weight, container.kind()), layers) {
                let Some(tensor) = tensor else { continue };
                if let Some(info) = container.tensors().get(&tensor) {
                    if info.shape.elements() == 0 {
                        let shape = info.shape;
                        return Err(Error::new(format!(
                            "tensor {} is empty: it has the shape {shape}",
                            quote(&tensor)
                        )));
                    }
                    let entry =
                        Entry::Stored { tensor: tensor.clone(), info: info.clone(), order: Order::AsStored };
                    entries.insert(name, entry);
                } else if !weight.optional {
                    missing.push(tensor.clone());
                }
                known.insert(tensor);
            }
        }
        let strangers: Vec<&String> =
            container.tensors().keys().filter(|name| !known.contains(*name)).collect();
        complain(arch, "lacks", &missing.iter().collect::<Vec<_>>())?;
        complain(arch, "holds tensors that it does not describe:", &strangers)?;
        Ok(Weights { container, entries })
    }

    /// Puts in what only the facts say: heads to re-layout by, and computed
    /// weights.
    pub(crate) fn complete(&mut self, arch: &Arch, facts: &Facts) -> Result<()> {
        for (pattern, weight) in &arch.weights {
            let relayout = match self.container.kind() {
                Kind::Safetensors => weight.hf_as,
                Kind::Gguf => weight.gguf_as,
            };
            let Some(relayout) = relayout else { continue };
            for (layer, facts) in facts.layers.iter().enumerate() {
                let Mixer::Attend(attend) = &facts.mixer;
                let order = match relayout {
                    Relayout::AddOne => Order::AddOne,
                    Relayout::UnpermuteHeads => Order::Interleaved { heads: attend.heads },
                    Relayout::UnpermuteKvHeads => Order::Interleaved { heads: attend.kv_heads },
                };
                self.reorder(&pattern.replace("{i}", &layer.to_string()), order)?;
            }
        }
        for layer in &facts.layers {
            let Mixer::Attend(attend) = &layer.mixer;
            let frequencies =
                crate::arch::frequencies(attend.rope.base, &attend.rope.factors, attend.head_size);
            self.entries.insert(format!("rope.{}", attend.rope.name), Entry::Computed(frequencies));
        }
        Ok(())
    }

    fn reorder(&mut self, name: &str, new: Order) -> Result<()> {
        let Some(Entry::Stored { tensor, info, order }) = self.entries.get_mut(name) else { return Ok(()) };
        let rows = info.shape.extents()[0];
        let fits = match new {
            Order::AsStored => true,
            Order::AddOne => info.dtype.tile() == (1, 1),
            Order::Interleaved { heads } => {
                let row_fits = info.dtype.tile().0 == 1 && (info.bytes as usize).is_multiple_of(rows.max(1));
                row_fits && rows.is_multiple_of(2 * heads)
            }
        };
        if !fits {
            let (dtype, shape) = (info.dtype, info.shape);
            return Err(Error::new(format!(
                "tensor '{tensor}', {dtype} {shape}, cannot be brought into girih's order"
            )));
        }
        *order = new;
        Ok(())
    }

    /// The container.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The names of all weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// How a weight is handed out, and its shape.
    pub fn info(&self, name: &str) -> Option<(DType, Shape)> {
        match self.entries.get(name)? {
            Entry::Stored { info, order: Order::AddOne, .. } => Some((DType::F32, info.shape)),
            Entry::Stored { info, .. } => Some((info.dtype, info.shape)),
            Entry::Computed(numbers) => Some((DType::F32, Shape::vector(numbers.len()))),
        }
    }

    /// All numbers of a weight, row after row.
    ///
    /// # Errors
    /// When there is no such weight, or its file cannot be read.
    pub fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        let (dtype, shape) = self.info(name).ok_or_else(|| absent(name))?;
        let mut bytes = vec![0; dtype.bytes(&shape)?];
        self.fill(name, 0, &mut bytes)?;
        decode(dtype, &shape, &bytes)
    }

    /// The container's tensor behind a weight, if it is one.
    pub fn stored(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        match self.entries.get(name)? {
            Entry::Stored { tensor, info, .. } => Some((tensor, info)),
            Entry::Computed(_) => None,
        }
    }

    /// Fills `into` with the bytes of a weight from `offset` on, in the format
    /// that [`Weights::info`] says.
    ///
    /// # Errors
    /// When there is no such weight, or its file cannot be read.
    fn fill(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        match self.entries.get(name).ok_or_else(|| absent(name))? {
            Entry::Stored { info, order: Order::AsStored, .. } => self.container.read(info, offset, into),
            Entry::Stored { info, order: Order::AddOne, .. } => {
                let mut numbers = self.decoded(info)?;
                numbers.iter_mut().for_each(|number| *number += 1.0);
                copy(&numbers, offset, into)
            }
            Entry::Stored { info, order: Order::Interleaved { heads }, .. } => {
                self.read_interleaved(info, *heads, offset, into)
            }
            Entry::Computed(numbers) => copy(numbers, offset, into),
        }
    }

    /// As [`WeightSource::read`], with the bytes and in the order of the container.
    pub fn fill_stored(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let (_, info) = self.stored(name).ok_or_else(|| absent(name))?;
        self.container.read(info, offset, into)
    }

    fn decoded(&self, info: &TensorInfo) -> Result<Vec<f32>> {
        let mut bytes = vec![0; info.bytes as usize];
        self.container.read(info, 0, &mut bytes)?;
        decode(info.dtype, &info.shape, &bytes)
    }

    /// Reads row by row: row `i` of half `s` of a head is stored at `2i + s`.
    fn read_interleaved(&self, info: &TensorInfo, heads: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let rows = info.shape.extents()[0];
        let row_bytes = info.bytes as usize / rows;
        let mut at = offset as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let (row, within) = (at / row_bytes, at % row_bytes);
            let length = (row_bytes - within).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            let stored = interleaved_row(row, rows / heads);
            self.container.read(info, (stored * row_bytes + within) as u64, now)?;
            (at, rest) = (at + length, later);
        }
        Ok(())
    }
}

/// Where llama.cpp's converter puts row `row` of a matrix of heads of `size`
/// rows: the halves of a head are interleaved.
pub fn interleaved_row(row: usize, size: usize) -> usize {
    let (head, within) = (row / size, row % size);
    let (half, i) = (within / (size / 2), within % (size / 2));
    head * size + 2 * i + half
}

impl WeightSource for Weights {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.fill(name, offset, into)
    }

    /// The files, and what is made of their tensors: the same files under
    /// another description may be handed out in another order.
    fn identity(&self) -> Option<[u8; 32]> {
        let mut digest = Sha256::new();
        digest.update(format!("{ORDERS}\n{}\n", self.container.identity()?));
        for (name, entry) in &self.entries {
            digest.update(format!("{name:?} {entry:?}\n"));
        }
        Some(digest.finalize().into())
    }
}

impl crate::arch::Stored for Weights {
    fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn vocabulary(&self) -> Result<usize> {
        self.info("embed.table").map(|(_, shape)| shape.extents()[0]).ok_or_else(|| absent("embed.table"))
    }

    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        self.container.tensors().get(tensor).map(|info| self.decoded(info)).transpose()
    }
}

fn absent(name: &str) -> Error {
    Error::new(format!("the model has no weight '{name}'"))
}

fn names(weight: &Weight, kind: Kind) -> Option<&str> {
    match kind {
        Kind::Safetensors => weight.hf.as_deref(),
        Kind::Gguf => weight.gguf.as_deref(),
    }
}

/// Our name and the container's, for every layer where the pattern has `{i}`.
fn expand<'a>(
    pattern: &'a str,
    tensor: Option<&'a str>,
    layers: usize,
) -> impl Iterator<Item = (String, Option<String>)> + use<'a> {
    let indexes: Range<usize> = if pattern.contains("{i}") { 0..layers } else { 0..1 };
    indexes.map(move |i| {
        let at = |text: &str| text.replace("{i}", &i.to_string());
        (at(pattern), tensor.map(at))
    })
}

/// The names of tensors that may be there and are not needed.
fn unused(arch: &Arch, container: &Container, layers: usize) -> BTreeSet<String> {
    let patterns = match container.kind() {
        Kind::Safetensors => arch.unused.hf.clone(),
        Kind::Gguf => {
            let factors = arch.rope.values().filter_map(|rope| rope.scaling.as_ref()?.factors.clone());
            arch.unused.gguf.iter().cloned().chain(factors).collect()
        }
    };
    patterns.iter().flat_map(|pattern| expand(pattern, Some(pattern), layers)).map(|(name, _)| name).collect()
}

/// An error that lists `tensors`, if there are any.
fn complain(arch: &Arch, what: &str, tensors: &[&String]) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    let listed: Vec<String> = tensors.iter().take(LISTED).map(|name| quote(name)).collect();
    let more = tensors.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (name, list) = (&arch.name, listed.join(", "));
    Err(Error::new(format!("as a model of architecture {name}, the file {what} {list}{more}")))
}

fn decode(dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<Vec<f32>> {
    let view = View::new(dtype, shape.rows(), shape.columns(), bytes)?;
    let mut numbers = vec![0.0; shape.elements()];
    view.unpack_rows(0..view.rows(), &mut numbers);
    Ok(numbers)
}

/// Copies the bytes of `numbers` from `offset` on.
fn copy(numbers: &[f32], offset: u64, into: &mut [u8]) -> Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let start = usize::try_from(offset).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
    let part = range.and_then(|range| bytes.get(range));
    into.copy_from_slice(part.ok_or_else(|| Error::new("a weight was read past its end"))?);
    Ok(())
}
