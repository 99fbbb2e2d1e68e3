//! Weights as OpenVINO reads them: planes in one buffer, at places that follow from the graph.

use std::collections::HashMap;
use std::sync::Arc;

use girih_graph::{Graph, Op, OperandKind, Value, ValueId, WeightSource};
use girih_tensor::{DType, Error, ErrorKind, Result, Shape, View};

use crate::device::OpenVinoDevice;
use crate::ffi::ConstantBytes;
use crate::ir::{Constants, Plane, Precision};
use crate::kv_form::KvForm;
use crate::planes::{PlaneFormat, ZeroKind};

/// Bytes of a file that are read at once, to be made planes.
const READ_BYTES: usize = 16 << 20;

/// A weight in the buffer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredWeight {
    /// Numbers as they are.
    Numbers(Plane),
    /// A matrix in a block format.
    Blocks(BlockPlanes),
    /// Numbers that the host reads, as the frequencies of rotations.
    OnHost,
}

impl StoredWeight {
    /// The bytes that OpenVINO reads.
    pub fn bytes(&self) -> usize {
        match self {
            StoredWeight::Numbers(plane) => plane.bytes,
            StoredWeight::Blocks(BlockPlanes { format: _, codes, zeros, offsets, scales }) => {
                let planes = [Some(codes), zeros.as_ref(), offsets.as_ref(), Some(scales)];
                planes.into_iter().flatten().map(|plane| plane.bytes).sum()
            }
            StoredWeight::OnHost => 0,
        }
    }
}

/// The planes of a matrix in a block format.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockPlanes {
    pub format: PlaneFormat,
    pub codes: Plane,
    /// The zero points of groups, if the format has them and the matrix multiplies.
    pub zeros: Option<Plane>,
    /// The offsets of groups, if the format has zero points of groups and the matrix is a table.
    pub offsets: Option<Plane>,
    pub scales: Plane,
}

/// The places of all weights of a graph, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneLayout {
    places: HashMap<String, StoredWeight>,
    bytes: usize,
}

/// How the nodes of a graph use a weight.
#[derive(Clone, Copy, Debug, Default)]
struct WeightUses {
    as_matrix: bool,
    as_table: bool,
    as_vector: bool,
    on_host: bool,
}

fn use_of(graph: &Graph, id: ValueId) -> WeightUses {
    let mut found = WeightUses::default();
    for node in &graph.nodes {
        let operands = node.inputs.iter().zip(node.op.spec().operands);
        for (_, kind) in operands.filter(|(operand, _)| **operand == id) {
            match kind {
                OperandKind::Vector if matches!(node.op, Op::Rope { .. }) => found.on_host = true,
                OperandKind::Vector => found.as_vector = true,
                OperandKind::Matrix if matches!(node.op, Op::Embed) => found.as_table = true,
                OperandKind::Matrix | OperandKind::Matrices => found.as_matrix = true,
                OperandKind::Ids
                | OperandKind::Given
                | OperandKind::Rows
                | OperandKind::Activations
                | OperandKind::StateOrRows
                | OperandKind::Carried => {}
            }
        }
    }
    found
}

/// Why a weight cannot be used; a clause.
pub(crate) fn weight_objection(graph: &Graph, id: ValueId) -> Option<String> {
    let (found, dtype) = (use_of(graph, id), graph.value(id).dtype);
    let is_matrix = found.as_matrix || found.as_table;
    if usize::from(is_matrix) + usize::from(found.as_vector) + usize::from(found.on_host) > 1 {
        return Some("it is used as a matrix and as a vector".to_owned());
    }
    if !is_matrix || matrix_precision(dtype).is_some() {
        return None;
    }
    match PlaneFormat::of(dtype) {
        Some(format) => format.objection(graph.value(id).shape),
        None => Some(format!("matrices in {dtype} are not supported")),
    }
}

/// The precision of a matrix in the buffer.
fn matrix_precision(dtype: DType) -> Option<Precision> {
    match dtype {
        DType::F32 => Some(Precision::F32),
        DType::F16 => Some(Precision::F16),
        DType::BF16 => Some(Precision::BF16),
        _ => None,
    }
}

impl PlaneLayout {
    /// The places of a graph's weights. A weight that the backend refuses has none.
    pub fn of(graph: &Graph) -> PlaneLayout {
        let mut layout = PlaneLayout::default();
        for (id, value) in graph.weights() {
            let found = use_of(graph, id);
            let place = if found.on_host {
                StoredWeight::OnHost
            } else if found.as_matrix || found.as_table {
                match (matrix_precision(value.dtype), PlaneFormat::of(value.dtype)) {
                    (Some(precision), _) => StoredWeight::Numbers(layout.numbers(precision, value)),
                    (None, Some(format)) => StoredWeight::Blocks(layout.blocks(format, value.shape, found)),
                    (None, None) => continue,
                }
            } else {
                StoredWeight::Numbers(layout.numbers(Precision::F32, value))
            };
            layout.places.insert(value.name.clone(), place);
        }
        layout
    }

    /// Room for all numbers of a weight.
    fn numbers(&mut self, precision: Precision, value: &Value) -> Plane {
        let size = if precision == Precision::F32 { 4 } else { 2 };
        self.plane(precision, value.shape.extents().to_vec(), value.shape.elements().saturating_mul(size))
    }

    /// Room for the planes of a matrix.
    fn blocks(&mut self, format: PlaneFormat, shape: Shape, found: WeightUses) -> BlockPlanes {
        let (rows, groups) = (shape.rows(), format.groups(shape));
        let each = vec![rows, groups, 1];
        let has_offsets = format.zeros == ZeroKind::Each;
        let of_groups =
            |layout: &mut PlaneLayout| layout.plane(Precision::F32, each.clone(), format.offset_bytes(shape));
        BlockPlanes {
            format,
            codes: self.plane(format.codes, vec![rows, groups, format.group], format.code_bytes(shape)),
            zeros: (has_offsets && found.as_matrix).then(|| of_groups(self)),
            offsets: (has_offsets && found.as_table).then(|| of_groups(self)),
            scales: self.plane(format.scales, each.clone(), format.scale_bytes(shape)),
        }
    }

    fn plane(&mut self, precision: Precision, shape: Vec<usize>, bytes: usize) -> Plane {
        let offset = self.bytes;
        let end = offset.saturating_add(bytes);
        self.bytes = end.checked_next_multiple_of(ConstantBytes::ALIGNMENT).unwrap_or(usize::MAX);
        Plane { precision, shape, offset, bytes }
    }

    /// The bytes of all weights.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The place of a weight.
    pub fn find(&self, name: &str) -> Option<&StoredWeight> {
        self.places.get(name)
    }
}

/// The weights of a model.
#[derive(Debug)]
pub struct OpenVinoWeights {
    pub(crate) device: Arc<OpenVinoDevice>,
    pub(crate) layout: PlaneLayout,
    /// Where the models of these weights have keys and values.
    pub(crate) form: KvForm,
    pub(crate) constants: Constants,
    pub(crate) bytes: Arc<ConstantBytes>,
    /// The identity of the source, if it is known.
    pub(crate) identity: Option<[u8; 32]>,
    on_host: HashMap<String, Vec<f32>>,
}

impl OpenVinoWeights {
    /// Reads all weights. `constants` are those that the models of the graph read beside them.
    ///
    /// # Errors
    /// When the source fails or memory is short.
    pub(crate) fn load(
        device: &Arc<OpenVinoDevice>,
        graph: &Graph,
        (layout, form): (PlaneLayout, KvForm),
        constants: Constants,
        source: &dyn WeightSource,
    ) -> Result<OpenVinoWeights> {
        let too_large = || Error::with_kind(ErrorKind::OutOfMemory, "the weights exceed the address space");
        let count = layout.bytes.checked_add(constants.bytes().len()).ok_or_else(too_large)?;
        let mut bytes = ConstantBytes::zeroed(count)?;
        let mut on_host = HashMap::new();
        for (_, value) in graph.weights() {
            match layout.find(&value.name) {
                Some(StoredWeight::OnHost) => {
                    on_host.insert(value.name.clone(), numbers(value, source)?);
                }
                Some(StoredWeight::Numbers(plane)) => {
                    let into = &mut bytes.bytes_mut()[plane.offset..plane.offset + plane.bytes];
                    if is_stored_alike(value.dtype, plane.precision) {
                        source.read(&value.name, 0, into)?;
                    } else {
                        DType::F32.pack(&numbers(value, source)?, into);
                    }
                }
                Some(StoredWeight::Blocks(planes)) => {
                    planes.read(value, source, bytes.bytes_mut(), READ_BYTES)?
                }
                None => {
                    let (name, dtype) = (&value.name, value.dtype);
                    return Err(Error::new(format!(
                        "the weight '{name}' in {dtype} was not refused; this is a bug in girih"
                    )));
                }
            }
        }
        bytes.bytes_mut()[layout.bytes..].copy_from_slice(constants.bytes());
        source.check_unchanged()?;
        Ok(OpenVinoWeights {
            device: Arc::clone(device),
            layout,
            form,
            constants,
            bytes: Arc::new(bytes),
            identity: source.identity(),
            on_host,
        })
    }

    /// The numbers of a weight that the host reads.
    pub(crate) fn on_host(&self, value: &Value) -> Result<&[f32]> {
        self.on_host.get(&value.name).map(Vec::as_slice).ok_or_else(|| {
            Error::new(format!("the weight '{}' is not on the host; this is a bug in girih", value.name))
        })
    }
}

impl BlockPlanes {
    /// The planes of `count` matrices, which lie one after another.
    pub fn apart(&self, count: usize) -> BlockPlanes {
        let apart = |plane: &Plane| {
            let (rows, inner) = plane.shape.split_first().expect("planes have rows");
            let shape = [count, rows / count.max(1)].into_iter().chain(inner.iter().copied()).collect();
            Plane { shape, ..plane.clone() }
        };
        BlockPlanes {
            format: self.format,
            codes: apart(&self.codes),
            zeros: self.zeros.as_ref().map(apart),
            offsets: self.offsets.as_ref().map(apart),
            scales: apart(&self.scales),
        }
    }

    /// Reads a matrix and fills its planes, which lie one after another in the buffer. `at_once` are the bytes of a file that
    /// are read at once, or those of a row if that is more, so that little is in memory twice.
    fn read(
        &self,
        value: &Value,
        source: &dyn WeightSource,
        buffer: &mut [u8],
        at_once: usize,
    ) -> Result<()> {
        let mut rest = &mut buffer[self.codes.offset..];
        let mut taken = self.codes.offset;
        let mut next = |plane: &Plane| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(plane.offset - taken);
            let (own, others) = from.split_at_mut(plane.bytes);
            (rest, taken) = (others, plane.offset + plane.bytes);
            own
        };
        let codes = next(&self.codes);
        let [zeros, offsets] =
            [&self.zeros, &self.offsets].map(|plane| plane.as_ref().map_or_else(Default::default, &mut next));
        let scales = next(&self.scales);
        self.fill(value, source, [codes, zeros, offsets, scales], at_once)
    }

    /// Reads some rows after the others, and fills their part of the planes.
    fn fill(
        &self,
        value: &Value,
        source: &dyn WeightSource,
        mut planes: [&mut [u8]; 4],
        at_once: usize,
    ) -> Result<()> {
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        let tile_rows = value.dtype.tile().0;
        let tiles = (at_once / value.dtype.matrix_bytes(tile_rows, columns)?.max(1)).max(1);
        let each = tiles.saturating_mul(tile_rows).min(rows).max(1);
        let mut bytes = vec![0; value.dtype.matrix_bytes(each, columns)?];
        let mut offset = 0;
        for first in (0..rows).step_by(each) {
            let shape = Shape::matrix(each.min(rows - first), columns);
            let count = value.dtype.bytes(&shape)?;
            source.read(&value.name, offset, &mut bytes[..count])?;
            offset += count as u64;
            let format = self.format;
            let [codes, of_groups, scales] =
                [format.code_bytes(shape), format.offset_bytes(shape), format.scale_bytes(shape)];
            let [a, b, c, d] = &mut planes;
            let parts =
                [next_part(a, codes), next_part(b, of_groups), next_part(c, of_groups), next_part(d, scales)];
            format.fill(shape, &bytes[..count], parts);
        }
        Ok(())
    }
}

/// Takes the first bytes of a plane, or all if there are fewer.
fn next_part<'a>(plane: &mut &'a mut [u8], count: usize) -> &'a mut [u8] {
    let count = count.min(plane.len());
    let (part, rest) = std::mem::take(plane).split_at_mut(count);
    *plane = rest;
    part
}

/// Whether the bytes of a file are those of the buffer.
fn is_stored_alike(dtype: DType, precision: Precision) -> bool {
    matrix_precision(dtype) == Some(precision)
}

/// All numbers of a weight.
fn numbers(value: &Value, source: &dyn WeightSource) -> Result<Vec<f32>> {
    let (rows, columns) = (value.shape.rows(), value.shape.columns());
    let mut bytes = vec![0; value.dtype.matrix_bytes(rows, columns)?];
    source.read(&value.name, 0, &mut bytes)?;
    let mut numbers = vec![0.0; value.shape.elements()];
    View::new(value.dtype, rows, columns, &bytes)?.unpack_rows(0..rows, &mut numbers);
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use girih_graph::testing::{WeightTable, stored_values};
    use girih_graph::{Builder, Key, OutputKind};
    use girih_tensor::Random;

    use super::*;

    #[test]
    fn planes_do_not_depend_on_the_rows_that_are_read_at_once() {
        for dtype in [DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::Q4NX] {
            let shape = Shape::matrix(70, 512);
            let bytes = stored_values(dtype, &shape, &mut Random(3));
            let source = WeightTable(HashMap::from([("weight".to_owned(), bytes)]));
            let key = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Logits };
            let mut builder = Builder::new(key);
            let x = builder.input("x", &[512], DType::F32);
            let weight = builder.weight("weight", shape, dtype);
            let y = builder.shaped("y", Op::Linear, &[x, weight], &[70]);
            let y = builder.gather("rows", y);
            let graph = builder.finish(y);
            let layout = PlaneLayout::of(&graph);
            let Some(StoredWeight::Blocks(planes)) = layout.find("weight") else {
                panic!("{dtype} has planes")
            };
            let read = |at_once| {
                let mut buffer = vec![0; layout.bytes()];
                planes.read(graph.value(weight), &source, &mut buffer, at_once).unwrap();
                buffer
            };
            let whole = read(READ_BYTES);
            assert!(whole.iter().any(|byte| *byte != 0));
            for at_once in [1, 2000, 20_000] {
                assert!(read(at_once) == whole, "{dtype}, {at_once} bytes at once");
            }
        }
    }
}
