//! Weights on the device: read once, packed on the host, uploaded in parts.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use girih_graph::{Graph, Op, Role, Value, ValueId, WeightSource};
use girih_tensor::{Error, ErrorKind, Result, View};

use crate::device::{GpuDevice, UPLOAD_BYTES};
use crate::driver::BufferPart;
use crate::group::{GroupedMatmul, JoinedNodes, joined_name};
use crate::kernel::KernelTuning;
use crate::layout::BAND;
use crate::matrix::MatrixShape;
use crate::precision::ActPrecision;
use crate::weight_role::{WeightRole, use_of};

/// The weights of a model.
#[derive(Debug)]
pub struct GpuWeights {
    pub(crate) device: Arc<GpuDevice>,
    /// To which rows are rounded before they are multiplied by matrices.
    pub(crate) precision: ActPrecision,
    /// What differs between devices in the kernels of products.
    pub(crate) tuning: KernelTuning,
    matrices: HashMap<String, Vec<MatrixPiece>>,
    /// Matrices whose products are one launch, by their joined names.
    groups: HashMap<String, GroupedMatrix>,
    vectors: HashMap<String, BufferPart>,
    /// Weights that the host reads, such as frequencies.
    host: HashMap<String, Vec<f32>>,
}

/// Some bands of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct MatrixPiece {
    /// The first band, and the number of bands.
    pub first: usize,
    pub bands: usize,
    pub codes: BufferPart,
    pub scales: BufferPart,
}

/// Matrices of one value, one after another.
#[derive(Clone, Debug)]
pub(crate) struct GroupedMatrix {
    /// The shape of all together.
    pub shape: MatrixShape,
    pub piece: MatrixPiece,
    pub bias: Option<BufferPart>,
}

/// The weights that the host reads.
fn host_weights(graph: &Graph) -> HashSet<ValueId> {
    let ropes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Rope { .. }));
    ropes.map(|node| node.inputs[1]).collect()
}

impl GpuWeights {
    /// The bytes on the device.
    pub(crate) fn plan(graph: &Graph) -> u64 {
        let bytes = |(id, value): (ValueId, &Value)| match use_of(graph, id) {
            Ok(WeightRole::Matrix(shape)) => shape.bytes().unwrap_or(u64::MAX),
            Ok(WeightRole::Vector) | Err(_) => value.shape.elements() as u64 * 4,
        };
        graph.weights().map(bytes).fold(0, u64::saturating_add)
    }

    /// Reads and uploads all weights.
    pub(crate) fn load(
        device: &Arc<GpuDevice>,
        graph: &Graph,
        source: &dyn WeightSource,
        (precision, tuning): (ActPrecision, KernelTuning),
    ) -> Result<GpuWeights> {
        let mut weights = GpuWeights {
            device: Arc::clone(device),
            precision,
            tuning,
            matrices: HashMap::new(),
            groups: HashMap::new(),
            vectors: HashMap::new(),
            host: HashMap::new(),
        };
        let of_host = host_weights(graph);
        let mut reader = WeightReader { device, source, bytes: Vec::new() };
        let mut done = HashSet::new();
        for group in JoinedNodes::of(graph, device.binding_limit()).matmuls {
            let name = joined_name(graph, group.iter().map(|matmul| matmul.weight));
            done.extend(
                group.iter().map(|matmul| matmul.weight).chain(group.iter().filter_map(|matmul| matmul.bias)),
            );
            weights.groups.insert(name, reader.group(graph, &group)?);
        }
        for (id, value) in graph.weights().filter(|(id, _)| !done.contains(id)) {
            debug_assert_eq!(value.role, Role::Weight);
            let refused = |clause: String| {
                Error::with_kind(
                    ErrorKind::Refused,
                    format!("the weight '{}' cannot be used: {clause}", value.name),
                )
            };
            match use_of(graph, id).map_err(refused)? {
                WeightRole::Matrix(shape) => {
                    let pieces = reader.matrix(value, shape)?;
                    weights.matrices.insert(value.name.clone(), pieces);
                }
                WeightRole::Vector => {
                    let numbers = reader.numbers(value)?;
                    let part = reader.vector(&value.name, &numbers)?;
                    weights.vectors.insert(value.name.clone(), part);
                    if of_host.contains(&id) {
                        weights.host.insert(value.name.clone(), numbers);
                    }
                }
            }
        }
        source.check_unchanged()?;
        Ok(weights)
    }

    /// The pieces of a matrix.
    pub(crate) fn matrix(&self, value: &Value) -> Result<&[MatrixPiece]> {
        self.matrices.get(&value.name).map(Vec::as_slice).ok_or_else(|| absent(value))
    }

    /// The matrices of these joined names.
    pub(crate) fn group(&self, name: &str) -> Result<&GroupedMatrix> {
        let absent = || Error::new(format!("the weights '{name}' are not loaded; this is a bug in girih"));
        self.groups.get(name).ok_or_else(absent)
    }

    /// A vector.
    pub(crate) fn vector(&self, value: &Value) -> Result<&BufferPart> {
        self.vectors.get(&value.name).ok_or_else(|| absent(value))
    }

    /// The numbers of a weight that the host reads.
    pub(crate) fn host(&self, value: &Value) -> Result<&[f32]> {
        self.host.get(&value.name).map(Vec::as_slice).ok_or_else(|| absent(value))
    }
}

fn absent(value: &Value) -> Error {
    Error::new(format!("the weight '{}' is not loaded; this is a bug in girih", value.name))
}

/// The little-endian bytes of numbers.
pub(crate) fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Reads weights, with room for their bytes.
struct WeightReader<'a> {
    device: &'a GpuDevice,
    source: &'a dyn WeightSource,
    bytes: Vec<u8>,
}

impl WeightReader<'_> {
    /// All numbers of a weight.
    fn numbers(&mut self, value: &Value) -> Result<Vec<f32>> {
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        self.bytes.resize(value.dtype.matrix_bytes(rows, columns)?, 0);
        self.source.read(&value.name, 0, &mut self.bytes)?;
        let mut numbers = vec![0.0; value.shape.elements()];
        View::new(value.dtype, rows, columns, &self.bytes)?.unpack_rows(0..rows, &mut numbers);
        Ok(numbers)
    }

    /// A vector on the device.
    fn vector(&mut self, name: &str, numbers: &[f32]) -> Result<BufferPart> {
        let buffer = self.device.buffer(name, numbers.len() as u64 * 4)?;
        self.device.upload(&buffer, 0, &bytes_of(numbers))?;
        Ok(BufferPart::whole(&buffer))
    }

    /// Packs a matrix, or several, piece by piece.
    fn matrix(&mut self, value: &Value, shape: MatrixShape) -> Result<Vec<MatrixPiece>> {
        let ranges = shape.pieces(self.device.binding_limit()).ok_or_else(|| {
            let sentence =
                format!("a part of the weight '{}' is larger than a binding of the GPU", value.name);
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        let mut pieces = Vec::new();
        for range in ranges {
            let piece = self.room(&value.name, shape, range.clone())?;
            self.fill(value, shape, range, &piece, 0)?;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Packs matrices of one value, one after another.
    fn group(&mut self, graph: &Graph, group: &[GroupedMatmul]) -> Result<GroupedMatrix> {
        let rows = group.iter().map(|matmul| matmul.shape.rows).sum();
        let shape = MatrixShape { rows, ..group[0].shape };
        let piece = self.room(&graph.value(group[0].weight).name, shape, 0..shape.bands())?;
        let mut at = 0;
        for matmul in group {
            let bands = matmul.shape.bands();
            self.fill(graph.value(matmul.weight), matmul.shape, 0..bands, &piece, at)?;
            at += bands;
        }
        let mut numbers = Vec::new();
        for bias in group.iter().filter_map(|matmul| matmul.bias) {
            numbers.extend(self.numbers(graph.value(bias))?);
        }
        let bias =
            (!numbers.is_empty()).then(|| self.vector("the biases of a group", &numbers)).transpose()?;
        Ok(GroupedMatrix { shape, piece, bias })
    }

    /// Buffers for some bands.
    fn room(&self, name: &str, shape: MatrixShape, bands: Range<usize>) -> Result<MatrixPiece> {
        let [code_bytes, scale_bytes] = shape.band_bytes();
        let codes = self.device.buffer(name, (bands.len() * code_bytes) as u64)?;
        let scales = match scale_bytes {
            0 => codes.clone(),
            _ => self.device.buffer(name, (bands.len() * scale_bytes) as u64)?,
        };
        let (codes, scales) = (BufferPart::whole(&codes), BufferPart::whole(&scales));
        Ok(MatrixPiece { first: bands.start, bands: bands.len(), codes, scales })
    }

    /// Reads, packs and uploads bands of a matrix, to band `to` of a piece and those that follow.
    fn fill(
        &mut self,
        value: &Value,
        shape: MatrixShape,
        bands: Range<usize>,
        piece: &MatrixPiece,
        to: usize,
    ) -> Result<()> {
        let [code_bytes, scale_bytes] = shape.band_bytes();
        let step = (UPLOAD_BYTES / (code_bytes + scale_bytes)).max(1);
        let mut done = 0;
        while done < bands.len() {
            // The bands of a matrix, up to its last one.
            let first = bands.start + done;
            let count = step.min(bands.len() - done).min(shape.bands() - first % shape.bands());
            let (codes, scales) = self.packed(value, shape, first, count)?;
            self.device.upload(&piece.codes.buffer, ((to + done) * code_bytes) as u64, &codes)?;
            self.device.upload(&piece.scales.buffer, ((to + done) * scale_bytes) as u64, &scales)?;
            done += count;
        }
        Ok(())
    }

    /// Reads and packs bands of one matrix.
    fn packed(
        &mut self,
        value: &Value,
        shape: MatrixShape,
        first: usize,
        count: usize,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let tile_rows = shape.dtype.tile().0;
        let (of, band) = (first / shape.bands(), first % shape.bands());
        let rows = (shape.rows - band * BAND).min(count * BAND);
        let at = (of * shape.rows + band * BAND) / tile_rows * shape.row_bytes();
        self.bytes.resize(rows.div_ceil(tile_rows) * shape.row_bytes(), 0);
        self.source.read(&value.name, at as u64, &mut self.bytes)?;
        let [code_bytes, scale_bytes] = shape.band_bytes();
        let (mut codes, mut scales) = (vec![0; count * code_bytes], vec![0; count * scale_bytes]);
        let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let each = count.div_ceil(threads);
        let source_bytes = BAND / tile_rows * shape.row_bytes() * each;
        thread::scope(|scope| {
            let mut scale_parts = scales.chunks_mut((each * scale_bytes).max(1));
            let parts = codes.chunks_mut(each * code_bytes).zip(self.bytes.chunks(source_bytes.max(1)));
            for (codes, bytes) in parts {
                let scales = scale_parts.next().unwrap_or(&mut []);
                scope.spawn(move || shape.pack(codes.len() / code_bytes, bytes, codes, scales));
            }
        });
        Ok((codes, scales))
    }
}
