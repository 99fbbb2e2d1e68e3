//! Weights. Those that the array reads are stored as padded bf16 or Q4NX: in buffer
//! objects, on the host, or both, depending on the runtime. Those that only the
//! host reads keep the format of the file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use girih_graph::backend::WeightSource;
use girih_graph::interpret::WeightRows;
use girih_graph::{Graph, Value};
use girih_tensor::{DType, Error, ErrorKind, Result, View};

use super::device::Device;
use super::runtime::{Runtime, WeightUse};
use crate::form::groups::{ArrayTensor, Groups, TensorKind};
use crate::form::weights::{TILE_BYTES, TILE_COLUMNS, TILE_ROWS, WeightLayout};
use crate::memory::ObjectId;

/// The number of rows decoded at once.
const DECODED_ROWS: usize = 64;

/// The host's cost of loading the weights that the array reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCost {
    /// Bytes that it copies within memory, besides reading each file once.
    pub copied: u64,
    /// Bytes that it keeps in its own memory.
    pub kept: u64,
}

impl LoadCost {
    /// The bytes that [`NpuWeights::load`] will copy and keep.
    pub fn of(graph: &Graph, groups: &Groups, weights: WeightUse) -> LoadCost {
        let mut cost = LoadCost::default();
        for tensor in fixed(groups) {
            let value = graph.find(&tensor.name).map(|id| graph.value(id));
            if let Some(value) = value.filter(|value| !is_array_format(value, tensor)) {
                cost.copied += value.dtype.bytes(&value.shape).map_or(0, |bytes| bytes as u64);
            }
            cost.copied += if weights == WeightUse::Copied { tensor.bytes() } else { 0 };
            cost.kept += if weights == WeightUse::InPlace { 0 } else { tensor.bytes() };
        }
        cost
    }
}

/// Whether the array reads the weight as it is stored in the file. Files also pad rows of Q4NX to
/// whole tiles.
fn is_array_format(value: &Value, tensor: &ArrayTensor) -> bool {
    let [_, columns] = tensor.extent;
    let stored = if tensor.dtype == DType::Q4NX { columns.next_multiple_of(TILE_COLUMNS) } else { columns };
    value.dtype == tensor.dtype && tensor.padded[1] == stored
}

/// The weights of a loaded model.
#[derive(Debug)]
pub struct NpuWeights {
    /// The weights that the array reads, by name.
    pub(super) resident: BTreeMap<String, ResidentWeight>,
    host: BTreeMap<String, HostWeight>,
}

/// A weight that the array reads.
#[derive(Debug)]
pub(super) struct ResidentWeight {
    home: WeightHome,
    /// The format of its values.
    pub dtype: DType,
    /// Rows and columns with padding.
    pub padded: [u32; 2],
    columns: u32,
    rows: u32,
}

/// The location of a weight in the format of the array.
#[derive(Debug)]
enum WeightHome {
    /// In a buffer object.
    Object(ObjectId),
    /// On the host.
    Host(Vec<u8>),
    /// In a buffer object and on the host.
    Both(ObjectId, Vec<u8>),
}

impl ResidentWeight {
    /// The buffer object, if it has one.
    pub fn object(&self) -> Option<ObjectId> {
        match self.home {
            WeightHome::Object(object) | WeightHome::Both(object, _) => Some(object),
            WeightHome::Host(_) => None,
        }
    }

    /// The host's copy, if it has one.
    fn copy(&self) -> Option<&[u8]> {
        match &self.home {
            WeightHome::Host(bytes) | WeightHome::Both(_, bytes) => Some(bytes),
            WeightHome::Object(_) => None,
        }
    }
}

/// A weight that only the host reads.
#[derive(Debug)]
struct HostWeight {
    dtype: DType,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl NpuWeights {
    /// The bytes of the weights of a graph, on both sides.
    pub fn plan(graph: &Graph, groups: &Groups, runtime: Runtime) -> u64 {
        let copies = if runtime.weights == WeightUse::Copied { 2 } else { 1 };
        let resident = fixed(groups).map(|tensor| tensor.bytes().saturating_mul(copies));
        let host = host_only(graph, groups)
            .map(|value| value.dtype.bytes(&value.shape).unwrap_or(usize::MAX) as u64);
        resident.chain(host).fold(0, u64::saturating_add)
    }

    /// Reads all weights of a graph, each once.
    ///
    /// # Errors
    /// When the source fails or memory is short.
    pub fn load(
        graph: &Graph,
        groups: &Groups,
        source: &dyn WeightSource,
        device: &mut Device,
    ) -> Result<NpuWeights> {
        let mut weights = NpuWeights { resident: BTreeMap::new(), host: BTreeMap::new() };
        for tensor in fixed(groups) {
            let value = graph.find(&tensor.name).map(|id| graph.value(id));
            let value =
                value.ok_or_else(|| Error::new(format!("the graph has no weight '{}'", tensor.name)))?;
            let home = home(value, tensor, source, device)?;
            let [rows, columns] = tensor.extent;
            let resident = ResidentWeight { home, dtype: tensor.dtype, padded: tensor.padded, columns, rows };
            weights.resident.insert(tensor.name.clone(), resident);
        }
        for value in host_only(graph, groups) {
            let (rows, columns) = (value.shape.rows(), value.shape.columns());
            let bytes = read(value, source)?;
            weights.host.insert(value.name.clone(), HostWeight { dtype: value.dtype, rows, columns, bytes });
        }
        Ok(weights)
    }

    /// The host's copy of a weight that the array reads.
    ///
    /// # Errors
    /// When the host has no copy.
    pub(super) fn copy(&self, name: &str) -> Result<&[u8]> {
        let copy = self.resident.get(name).and_then(ResidentWeight::copy);
        copy.ok_or_else(|| Error::new(format!("the host has no copy of the weight '{name}'")))
    }

    /// All weights, as the host reads them.
    pub(super) fn rows<'a>(&'a self, device: &'a Device) -> impl WeightRows + 'a {
        HostView { weights: self, device }
    }
}

/// The tensors that are weights.
fn fixed(groups: &Groups) -> impl Iterator<Item = &ArrayTensor> {
    groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static)
}

/// The weights that no program of the array reads.
fn host_only<'a>(graph: &'a Graph, groups: &'a Groups) -> impl Iterator<Item = &'a Value> {
    let on_array = |value: &Value| fixed(groups).any(|tensor| tensor.name == value.name);
    graph.weights().map(|(_, value)| value).filter(move |value| !on_array(value))
}

/// Reads the stored bytes of a weight.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let mut bytes = zeros(value, value.dtype.bytes(&value.shape)?)?;
    source.read(&value.name, 0, &mut bytes)?;
    Ok(bytes)
}

/// Reads a weight to the location that the runtime chooses.
fn home(
    value: &Value,
    tensor: &ArrayTensor,
    source: &dyn WeightSource,
    device: &mut Device,
) -> Result<WeightHome> {
    let bytes = tensor.bytes();
    match device.runtime().weights {
        WeightUse::InPlace => {
            let object = device.allocate(bytes)?;
            device.ledger.load_copied_bytes += fill(value, tensor, source, device.map_mut(object, 0..bytes))?;
            device.preload(object);
            Ok(WeightHome::Object(object))
        }
        WeightUse::Copied => {
            let mut copy = zeros(value, bytes as usize)?;
            let copied = fill(value, tensor, source, &mut copy)?;
            let object = device.allocate(bytes)?;
            device.map_mut(object, 0..bytes).copy_from_slice(&copy);
            device.ledger.load_copied_bytes += copied + bytes;
            device.preload(object);
            Ok(WeightHome::Both(object, copy))
        }
        WeightUse::EachCall => {
            let mut copy = zeros(value, bytes as usize)?;
            device.ledger.load_copied_bytes += fill(value, tensor, source, &mut copy)?;
            Ok(WeightHome::Host(copy))
        }
    }
}

/// Writes a weight into zeroed memory in the format of the array. Returns the
/// bytes that were first read to another buffer: none if the file has the
/// array's format.
fn fill(value: &Value, tensor: &ArrayTensor, source: &dyn WeightSource, into: &mut [u8]) -> Result<u64> {
    if is_array_format(value, tensor) {
        let size = value.dtype.bytes(&value.shape)?;
        source.read(&value.name, 0, &mut into[..size])?;
        return Ok(0);
    }
    let stored = read(value, source)?;
    pack(value, &stored, tensor, into)?;
    Ok(stored.len() as u64)
}

/// Allocates zeroed memory for a weight.
fn zeros(value: &Value, size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let short = |_| {
        let sentence = format!("cannot allocate {size} bytes for '{}'", value.name);
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    };
    bytes.try_reserve_exact(size).map_err(short)?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Converts a weight to the format of the array; padding stays zero.
fn pack(value: &Value, stored: &[u8], tensor: &ArrayTensor, object: &mut [u8]) -> Result<()> {
    let (rows, columns) = (value.shape.rows(), value.shape.columns());
    let view = View::new(value.dtype, rows, columns, stored)?;
    if tensor.dtype == DType::Q4NX {
        pack_tiles(view, stored, tensor, object);
        return Ok(());
    }
    let row_bytes = tensor.row_bytes() as usize;
    let mut numbers = vec![0.0; DECODED_ROWS.min(rows) * columns];
    for first in (0..rows).step_by(DECODED_ROWS) {
        let band = first..rows.min(first + DECODED_ROWS);
        let numbers = &mut numbers[..band.len() * columns];
        view.unpack_rows(band.clone(), numbers);
        for (row, numbers) in band.zip(numbers.chunks_exact(columns.max(1))) {
            DType::BF16.pack(numbers, &mut object[row * row_bytes..][..2 * columns]);
        }
    }
    Ok(())
}

/// Packs a weight as Q4NX, tile row by tile row. Tiles of a file keep their bits; there are only
/// more of them in a row.
fn pack_tiles(view: View<'_>, stored: &[u8], tensor: &ArrayTensor, object: &mut [u8]) {
    let [height, width] = [TILE_ROWS as usize, TILE_COLUMNS as usize];
    let (rows, columns) = (view.rows(), view.columns());
    let all = tensor.padded[1] as usize;
    let row_bytes = all / width * TILE_BYTES as usize;
    if view.dtype() == DType::Q4NX {
        let own = columns.div_ceil(width) * TILE_BYTES as usize;
        for (from, into) in stored.chunks_exact(own).zip(object.chunks_exact_mut(row_bytes)) {
            into[..own].copy_from_slice(from);
        }
        return;
    }
    let mut numbers = vec![0.0; height * columns];
    let mut tile = vec![0.0; height * width];
    for (first, into) in (0..rows).step_by(height).zip(object.chunks_exact_mut(row_bytes)) {
        let band = first..rows.min(first + height);
        let numbers = &mut numbers[..band.len() * columns];
        view.unpack_rows(band, numbers);
        for (left, block) in (0..columns).step_by(width).zip(into.chunks_exact_mut(TILE_BYTES as usize)) {
            let end = columns.min(left + width);
            tile.fill(0.0);
            for (from, into) in numbers.chunks_exact(columns).zip(tile.chunks_exact_mut(width)) {
                into[..end - left].copy_from_slice(&from[left..end]);
            }
            DType::Q4NX.pack(&tile, block);
        }
    }
}

/// The weights and the device memory that contains some of them.
struct HostView<'a> {
    weights: &'a NpuWeights,
    device: &'a Device,
}

impl WeightRows for HostView<'_> {
    fn rows(&self, name: &str, rows: Range<usize>) -> Result<Cow<'_, [f32]>> {
        let outside =
            |count: usize| Error::new(format!("'{name}' has {count} rows; the rows {rows:?} do not exist"));
        if let Some(resident) = self.weights.resident.get(name) {
            if rows.end > resident.rows as usize {
                return Err(outside(resident.rows as usize));
            }
            return Ok(self.resident_rows(resident, rows)?.into());
        }
        let weight = self.weights.host.get(name);
        let weight = weight.ok_or_else(|| Error::new(format!("the weight '{name}' does not exist")))?;
        if rows.end > weight.rows {
            return Err(outside(weight.rows));
        }
        let view = View::new(weight.dtype, weight.rows, weight.columns, &weight.bytes)?;
        let mut numbers = vec![0.0; rows.len() * weight.columns];
        view.unpack_rows(rows, &mut numbers);
        Ok(numbers.into())
    }
}

impl HostView<'_> {
    /// The values of rows of a weight that the array reads, without their padding.
    fn resident_rows(&self, weight: &ResidentWeight, rows: Range<usize>) -> Result<Vec<f32>> {
        let [_, all] = weight.padded;
        let columns = weight.columns as usize;
        let height = if weight.dtype == DType::Q4NX { TILE_ROWS as usize } else { 1 };
        let bands = rows.start / height..rows.end.div_ceil(height);
        let band_bytes = WeightLayout::of(weight.dtype).bytes(height as u32, all) as usize;
        let bytes = self.resident_bytes(weight, bands.start * band_bytes..bands.end * band_bytes)?;
        let view = View::new(weight.dtype, bands.len() * height, all as usize, bytes)?;
        let first = bands.start * height;
        let mut padded = vec![0.0; rows.len() * all as usize];
        view.unpack_rows(rows.start - first..rows.end - first, &mut padded);
        Ok(padded.chunks_exact(all.max(1) as usize).flat_map(|row| &row[..columns]).copied().collect())
    }

    fn resident_bytes<'a>(&'a self, weight: &'a ResidentWeight, bytes: Range<usize>) -> Result<&'a [u8]> {
        match &weight.home {
            WeightHome::Host(copy) | WeightHome::Both(_, copy) => Ok(&copy[bytes]),
            WeightHome::Object(object) => self.device.map(*object, bytes.start as u64..bytes.end as u64),
        }
    }
}
