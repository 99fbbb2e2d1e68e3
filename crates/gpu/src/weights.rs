//! Weights on the device: read once, packed on the host, uploaded in parts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use girih_graph::{Graph, Op, OperandKind, Role, Value, ValueId, WeightSource};
use girih_tensor::{Error, ErrorKind, Result, View};

use crate::device::{BufferPart, GpuDevice, UPLOAD_BYTES};
use crate::layout::{BAND, BandLayout};
use crate::matrix::MatrixShape;

/// The weights of a model.
#[derive(Debug)]
pub struct GpuWeights {
    pub(crate) device: Arc<GpuDevice>,
    matrices: HashMap<String, Vec<MatrixPiece>>,
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

/// How nodes use a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightRole {
    /// One matrix, or several.
    Matrix(MatrixShape),
    /// Numbers in single precision.
    Vector,
}

/// How the nodes of a graph use a weight. The error is a clause.
pub(crate) fn use_of(graph: &Graph, id: ValueId) -> Result<WeightRole, String> {
    let mut found = None;
    for node in &graph.nodes {
        for (operand, kind) in node.inputs.iter().zip(node.op.spec().operands) {
            if *operand == id {
                let own = match kind {
                    OperandKind::Matrix | OperandKind::Matrices => matrix(graph.value(id), *kind)?,
                    _ => WeightRole::Vector,
                };
                if found.is_some_and(|found| found != own) {
                    return Err("it is used as a matrix and as a vector".to_owned());
                }
                found = Some(own);
            }
        }
    }
    Ok(found.unwrap_or(WeightRole::Vector))
}

fn matrix(value: &Value, kind: OperandKind) -> Result<WeightRole, String> {
    let dtype = value.dtype;
    let layout =
        BandLayout::of(dtype).ok_or_else(|| format!("the GPU has no kernels for weights in {dtype}"))?;
    let count = if kind == OperandKind::Matrices { value.shape.extents()[0] } else { 1 };
    let rows = value.shape.rows() / count.max(1);
    if dtype.tile().0 > 1 && count > 1 && !rows.is_multiple_of(dtype.tile().0) {
        return Err(format!("matrices of {rows} rows in {dtype} are not supported"));
    }
    Ok(WeightRole::Matrix(MatrixShape { dtype, layout, count, rows, columns: value.shape.columns() }))
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
    ) -> Result<GpuWeights> {
        let mut weights = GpuWeights {
            device: Arc::clone(device),
            matrices: HashMap::new(),
            vectors: HashMap::new(),
            host: HashMap::new(),
        };
        let of_host = host_weights(graph);
        let mut reader = WeightReader { device, source, bytes: Vec::new() };
        for (id, value) in graph.weights() {
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
                    let buffer = device.buffer(&value.name, numbers.len() as u64 * 4)?;
                    device.upload(&buffer, 0, &bytes_of(&numbers))?;
                    weights.vectors.insert(value.name.clone(), BufferPart::whole(&buffer));
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

    /// Packs a matrix, or several, piece by piece.
    fn matrix(&mut self, value: &Value, shape: MatrixShape) -> Result<Vec<MatrixPiece>> {
        let ranges = shape.pieces(self.device.binding_limit()).ok_or_else(|| {
            let sentence =
                format!("a part of the weight '{}' is larger than a binding of the GPU", value.name);
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        let [code_bytes, scale_bytes] = shape.band_bytes();
        let mut pieces = Vec::new();
        for range in ranges {
            let bands = range.len();
            let codes = self.device.buffer(&value.name, (bands * code_bytes) as u64)?;
            let scales = match scale_bytes {
                0 => codes.clone(),
                _ => self.device.buffer(&value.name, (bands * scale_bytes) as u64)?,
            };
            let step = (UPLOAD_BYTES / (code_bytes + scale_bytes)).max(1);
            let mut done = 0;
            while done < bands {
                // The bands of a matrix, up to its last one.
                let first = range.start + done;
                let count = step.min(bands - done).min(shape.bands() - first % shape.bands());
                let (packed_codes, packed_scales) = self.packed(value, shape, first, count)?;
                self.device.upload(&codes, (done * code_bytes) as u64, &packed_codes)?;
                self.device.upload(&scales, (done * scale_bytes) as u64, &packed_scales)?;
                done += count;
            }
            pieces.push(MatrixPiece {
                first: range.start,
                bands,
                codes: BufferPart::whole(&codes),
                scales: BufferPart::whole(&scales),
            });
        }
        Ok(pieces)
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
