//! Weights: those that the array reads lie in buffer objects from loading on,
//! padded and in bf16; those that only the host reads stay as they are stored.

use std::collections::BTreeMap;

use girih_graph::backend::WeightSource;
use girih_graph::{Graph, Value};
use girih_tensor::{DType, Error, Result, Shape, View};

use super::Device;
use crate::form::groups::{Groups, Tensor, TensorKind};
use crate::host::Rows;
use crate::memory::ObjectId;

/// Rows that are decoded at once.
const BAND: usize = 64;

/// The weights of a loaded model.
#[derive(Debug)]
pub struct Weights {
    /// Of each tensor of the array, by name: its object and its sizes.
    pub(super) resident: BTreeMap<String, Resident>,
    host: BTreeMap<String, HostWeight>,
}

/// A weight in a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    pub object: ObjectId,
    /// Rows and columns as they are padded.
    pub padded: [u32; 2],
    columns: u32,
    rows: u32,
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
    pub fn plan(graph: &Graph, groups: &Groups) -> u64 {
        let resident = fixed(groups).map(Tensor::bytes);
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
            let stored = read(value, source)?;
            let object = device.allocate(tensor.bytes())?;
            pack(value, &stored, tensor, device.map_mut(object))?;
            device.ledger.preloaded_bytes += tensor.bytes();
            let [rows, columns] = tensor.extent;
            let resident = Resident { object, padded: tensor.padded, columns, rows };
            weights.resident.insert(tensor.name.clone(), resident);
        }
        for value in host_only(graph, groups) {
            let (rows, columns) = (value.shape.rows(), value.shape.columns());
            let bytes = read(value, source)?;
            weights.host.insert(value.name.clone(), HostWeight { dtype: value.dtype, rows, columns, bytes });
        }
        Ok(weights)
    }

    /// All weights as the host sees them.
    pub(super) fn rows<'a>(&'a self, device: &'a Device) -> impl Rows + 'a {
        HostView { weights: self, device }
    }
}

/// The tensors of a graph's groups that are weights.
fn fixed(groups: &Groups) -> impl Iterator<Item = &Tensor> {
    groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static)
}

/// The weights that no program of the array reads.
fn host_only<'a>(graph: &'a Graph, groups: &'a Groups) -> impl Iterator<Item = &'a Value> {
    let on_array = |value: &Value| fixed(groups).any(|tensor| tensor.name == value.name);
    graph.weights().map(|(_, value)| value).filter(move |value| !on_array(value))
}

/// A weight's bytes as its source has them.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let size = value.dtype.bytes(&value.shape)?;
    let mut bytes = Vec::new();
    let short = |_| Error::new(format!("memory is short for '{}'", value.name));
    bytes.try_reserve_exact(size).map_err(short)?;
    bytes.resize(size, 0);
    source.read(&value.name, 0, &mut bytes)?;
    Ok(bytes)
}

/// Writes a weight into its object, rounded to bf16; padding stays zero.
fn pack(value: &Value, stored: &[u8], tensor: &Tensor, object: &mut [u8]) -> Result<()> {
    let Shape { .. } = value.shape;
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
            DType::BF16
                .unpack(&self.device.map(resident.object)[start..start + 2 * numbers.len()], &mut numbers);
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
