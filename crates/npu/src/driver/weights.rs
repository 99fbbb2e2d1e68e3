//! Weights: those that the array reads are padded and in bf16, and lie in
//! buffer objects from loading on, or with the host, or both, as the runtime
//! uses them; those that only the host reads stay as they are stored.

use std::collections::BTreeMap;

use girih_graph::backend::WeightSource;
use girih_graph::{Graph, Value};
use girih_tensor::{DType, Error, Result, View};

use super::Device;
use super::runtime::{Runtime, WeightUse};
use crate::form::groups::{ArrayTensor, Groups, TensorKind};
use crate::host::Rows;
use crate::memory::ObjectId;

/// Rows that are decoded at once.
const BAND: usize = 64;

/// What loading the weights that the array reads costs the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCost {
    /// Bytes that it copies within memory, beside reading each file once.
    pub copied: u64,
    /// Bytes that it keeps in memory of its own.
    pub kept: u64,
}

impl LoadCost {
    /// What [`Weights::load`] will copy and keep.
    pub fn of(graph: &Graph, groups: &Groups, weights: WeightUse) -> LoadCost {
        let mut cost = LoadCost::default();
        for tensor in fixed(groups) {
            let value = graph.find(&tensor.name).map(|id| graph.value(id));
            if let Some(value) = value.filter(|value| !is_stored_so(value, tensor)) {
                cost.copied += value.dtype.bytes(&value.shape).map_or(0, |bytes| bytes as u64);
            }
            cost.copied += if weights == WeightUse::Copied { tensor.bytes() } else { 0 };
            cost.kept += if weights == WeightUse::InPlace { 0 } else { tensor.bytes() };
        }
        cost
    }
}

/// Whether a weight is stored as the array reads it.
fn is_stored_so(value: &Value, tensor: &ArrayTensor) -> bool {
    value.dtype == DType::BF16 && tensor.padded[1] == tensor.extent[1]
}

/// The weights of a loaded model.
#[derive(Debug)]
pub struct Weights {
    /// Of each tensor of the array, by name: its object and its sizes.
    pub(super) resident: BTreeMap<String, Resident>,
    host: BTreeMap<String, HostWeight>,
}

/// A weight that the array reads.
#[derive(Debug)]
pub(super) struct Resident {
    home: Home,
    /// Rows and columns as they are padded.
    pub padded: [u32; 2],
    columns: u32,
    rows: u32,
}

/// Where a weight that the array reads is, as the array reads it.
#[derive(Debug)]
enum Home {
    /// In a buffer object.
    Object(ObjectId),
    /// With the host.
    Host(Vec<u8>),
    /// In a buffer object, and with the host.
    Both(ObjectId, Vec<u8>),
}

impl Resident {
    /// The buffer object, if it has one.
    pub fn object(&self) -> Option<ObjectId> {
        match self.home {
            Home::Object(object) | Home::Both(object, _) => Some(object),
            Home::Host(_) => None,
        }
    }

    /// The host's copy, if it has one.
    fn copy(&self) -> Option<&[u8]> {
        match &self.home {
            Home::Host(bytes) | Home::Both(_, bytes) => Some(bytes),
            Home::Object(_) => None,
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

impl Weights {
    /// Bytes that the weights of a graph take, on both sides.
    pub fn plan(graph: &Graph, groups: &Groups, runtime: Runtime) -> u64 {
        let copies = if runtime.weights == WeightUse::Copied { 2 } else { 1 };
        let resident = fixed(groups).map(|tensor| tensor.bytes().saturating_mul(copies));
        let host = host_only(graph, groups)
            .map(|value| value.dtype.bytes(&value.shape).unwrap_or(usize::MAX) as u64);
        resident.chain(host).fold(0, u64::saturating_add)
    }

    /// Reads all weights of a graph, once.
    ///
    /// # Errors
    /// When the source fails or memory is short.
    pub fn load(
        graph: &Graph,
        groups: &Groups,
        source: &dyn WeightSource,
        device: &mut Device,
    ) -> Result<Weights> {
        let mut weights = Weights { resident: BTreeMap::new(), host: BTreeMap::new() };
        for tensor in fixed(groups) {
            let value = graph.find(&tensor.name).map(|id| graph.value(id));
            let value =
                value.ok_or_else(|| Error::new(format!("the graph has no weight '{}'", tensor.name)))?;
            let home = home(value, tensor, source, device)?;
            let [rows, columns] = tensor.extent;
            let resident = Resident { home, padded: tensor.padded, columns, rows };
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
    /// When the host has none.
    pub(super) fn copy(&self, name: &str) -> Result<&[u8]> {
        let copy = self.resident.get(name).and_then(Resident::copy);
        copy.ok_or_else(|| Error::new(format!("the host has no copy of the weight '{name}'")))
    }

    /// All weights as the host sees them.
    pub(super) fn rows<'a>(&'a self, device: &'a Device) -> impl Rows + 'a {
        HostView { weights: self, device }
    }
}

/// The tensors of a graph's groups that are weights.
fn fixed(groups: &Groups) -> impl Iterator<Item = &ArrayTensor> {
    groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static)
}

/// The weights that no program of the array reads.
fn host_only<'a>(graph: &'a Graph, groups: &'a Groups) -> impl Iterator<Item = &'a Value> {
    let on_array = |value: &Value| fixed(groups).any(|tensor| tensor.name == value.name);
    graph.weights().map(|(_, value)| value).filter(move |value| !on_array(value))
}

/// A weight's bytes as its source has them.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let mut bytes = zeros(value, value.dtype.bytes(&value.shape)?)?;
    source.read(&value.name, 0, &mut bytes)?;
    Ok(bytes)
}

/// Reads a weight that the array reads to where the runtime keeps it.
fn home(value: &Value, tensor: &ArrayTensor, source: &dyn WeightSource, device: &mut Device) -> Result<Home> {
    let bytes = tensor.bytes();
    match device.runtime().weights {
        WeightUse::InPlace => {
            let object = device.allocate(bytes)?;
            device.ledger.load_copied_bytes += fill(value, tensor, source, device.map_mut(object, 0..bytes))?;
            device.preload(object);
            Ok(Home::Object(object))
        }
        WeightUse::Copied => {
            let mut copy = zeros(value, bytes as usize)?;
            let copied = fill(value, tensor, source, &mut copy)?;
            let object = device.allocate(bytes)?;
            device.map_mut(object, 0..bytes).copy_from_slice(&copy);
            device.ledger.load_copied_bytes += copied + bytes;
            device.preload(object);
            Ok(Home::Both(object, copy))
        }
        WeightUse::EachCall => {
            let mut copy = zeros(value, bytes as usize)?;
            device.ledger.load_copied_bytes += fill(value, tensor, source, &mut copy)?;
            Ok(Home::Host(copy))
        }
    }
}

/// Fills zeros with a weight as the array reads it; yields the bytes that
/// were read to another place first: none of a weight that is stored as the
/// array reads it.
fn fill(value: &Value, tensor: &ArrayTensor, source: &dyn WeightSource, into: &mut [u8]) -> Result<u64> {
    if is_stored_so(value, tensor) {
        let size = value.dtype.bytes(&value.shape)?;
        source.read(&value.name, 0, &mut into[..size])?;
        return Ok(0);
    }
    let stored = read(value, source)?;
    pack(value, &stored, tensor, into)?;
    Ok(stored.len() as u64)
}

/// Memory for a weight.
fn zeros(value: &Value, size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let short = |_| Error::new(format!("memory is short for '{}'", value.name));
    bytes.try_reserve_exact(size).map_err(short)?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Writes a weight to where the array reads it, rounded to bf16; padding
/// stays zero.
fn pack(value: &Value, stored: &[u8], tensor: &ArrayTensor, object: &mut [u8]) -> Result<()> {
    let (rows, columns) = (value.shape.rows(), value.shape.columns());
    let view = View::new(value.dtype, rows, columns, stored)?;
    let row_bytes = tensor.row_bytes() as usize;
    let mut numbers = vec![0.0; BAND.min(rows) * columns];
    for first in (0..rows).step_by(BAND) {
        let band = first..rows.min(first + BAND);
        let numbers = &mut numbers[..band.len() * columns];
        view.unpack_rows(band.clone(), numbers);
        for (row, numbers) in band.zip(numbers.chunks_exact(columns.max(1))) {
            DType::BF16.pack(numbers, &mut object[row * row_bytes..][..2 * columns]);
        }
    }
    Ok(())
}

/// Weights together with the memory that some of them lie in.
struct HostView<'a> {
    weights: &'a Weights,
    device: &'a Device,
}

impl Rows for HostView<'_> {
    fn row(&self, name: &str, row: usize) -> Result<Vec<f32>> {
        let outside =
            |rows: usize| Error::new(format!("'{name}' has {rows} rows; row {row} is not one of them"));
        if let Some(resident) = self.weights.resident.get(name) {
            if row >= resident.rows as usize {
                return Err(outside(resident.rows as usize));
            }
            let mut numbers = vec![0.0; resident.columns as usize];
            let start = row * resident.padded[1] as usize * 2;
            let bytes = start..start + 2 * numbers.len();
            let bytes = match &resident.home {
                Home::Host(copy) | Home::Both(_, copy) => &copy[bytes],
                Home::Object(object) => self.device.map(*object, bytes.start as u64..bytes.end as u64)?,
            };
            DType::BF16.unpack(bytes, &mut numbers);
            return Ok(numbers);
        }
        let weight = self.weights.host.get(name);
        let weight = weight.ok_or_else(|| Error::new(format!("there is no weight '{name}'")))?;
        if row >= weight.rows {
            return Err(outside(weight.rows));
        }
        let view = View::new(weight.dtype, weight.rows, weight.columns, &weight.bytes)?;
        let mut numbers = vec![0.0; weight.columns];
        view.unpack_rows(row..row + 1, &mut numbers);
        Ok(numbers)
    }
}
