//! Weights as this device holds them: matrices packed for the kernels, vectors
//! as `f32`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use girih_graph::{Error, Graph, Op, OperandKind, Value, ValueId, WeightSource};
use girih_tensor::{DType, View};

use crate::arrange::bands;
use crate::kernels::Table;
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, FLOAT_DEPTH, GROUP, LANES, LINE, Layout, Panel, PanelGroup,
};
use crate::memory::{Aligned, Shared, Whole};
use crate::pack::pack_band;
use crate::packed_store::{Contents, Kept, Listed, PackedStore, Residence, Unkept};
use crate::pool::{Grid, Pool};

/// All weights of a graph.
#[derive(Debug)]
pub struct Weights {
    indexes: HashMap<String, usize>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
enum Tensor {
    Matrix(Matrix),
    Vector(Aligned<f32>),
}

/// What the nodes of a graph take a weight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The second operand of `linear` or `embed`.
    Matrix,
    /// A norm's weight, a bias, or frequencies.
    Vector,
}

impl Form {
    /// What `op` takes its operand `index` for, if that is a weight.
    pub fn of(op: Op, index: usize) -> Option<Form> {
        match op.spec().operands.get(index)? {
            OperandKind::Matrix => Some(Form::Matrix),
            OperandKind::Vector => Some(Form::Vector),
            _ => None,
        }
    }

    /// What the graph takes `weight` for; all its readers agree on it.
    pub fn in_graph(graph: &Graph, weight: ValueId) -> Option<Form> {
        graph.nodes.iter().find_map(|node| {
            let index = node.inputs.iter().position(|&input| input == weight)?;
            Form::of(node.op, index)
        })
    }
}

impl Weights {
    /// The bytes that the weights of `graph` take.
    pub(crate) fn plan(graph: &Graph) -> u64 {
        let vectors = of_form(graph, Form::Vector);
        let vectors = vectors.map(|value| Aligned::<f32>::bytes(value.shape.elements()));
        let matrices = Place::of_all(of_form(graph, Form::Matrix));
        let matrices = matrices.map_or(u64::MAX, |places| Aligned::<u8>::bytes(Place::end(&places)));
        vectors.fold(matrices, u64::saturating_add)
    }

    /// Reads the weights of `graph`, a large one with all threads at once, as
    /// `store` kept them, or packs them and has them kept there.
    ///
    /// # Errors
    /// When `source` fails or memory is short; never because of the store.
    pub(crate) fn load(
        graph: &Graph,
        source: &dyn WeightSource,
        store: Option<&dyn PackedStore>,
        residence: Residence,
        pool: &Pool,
    ) -> Result<Weights, Error> {
        let contents = source.identity().and_then(|identity| contents(graph, &identity));
        let (Some(store), Some(contents)) = (store, contents) else {
            return Weights::fill(graph, source, None, pool);
        };
        if let Some(reader) = store.find(contents.key) {
            let kept = Kept::open(&contents, reader, residence);
            match kept.and_then(|kept| Weights::fill(graph, source, Some(&kept), pool)) {
                Ok(weights) => return Ok(weights),
                Err(error) => store.note(&error),
            }
        }
        let weights = Weights::fill(graph, source, None, pool)?;
        let matrix = |name: &str| {
            let index = weights.indexes.get(name).expect("what is packed is a matrix of the graph");
            &weights.matrix(*index).bytes
        };
        store.keep(Unkept::new(contents, matrix));
        Ok(weights)
    }

    /// The weights of `graph`: matrices as they are `kept`, all else from `source`.
    fn fill(
        graph: &Graph,
        source: &dyn WeightSource,
        kept: Option<&Kept<'_>>,
        pool: &Pool,
    ) -> Result<Weights, Error> {
        let mapped = |value: &Value| kept.and_then(|kept| kept.mapped(&value.name));
        let unmapped = of_form(graph, Form::Matrix).filter(|value| mapped(value).is_none());
        let places = Place::of_all(unmapped)?;
        let mut memory = Aligned::zeroed(Place::end(&places), "all that the weights pack to")?;
        fill_all(&places, &mut memory, pool, &|value, band, stored, packed| match kept
            .filter(|kept| kept.holds(&value.name))
        {
            Some(kept) => kept.read(&value.name, band, packed),
            None => read_and_pack(value, source, band, stored, packed),
        })?;
        let memory = Whole::Memory(Arc::new(memory));
        let mut filled = places.into_iter().map(|place| Shared::part(memory.clone(), place.range));
        let mut next = || filled.next().expect("each matrix that is not mapped was filled");
        let mut weights = Weights { indexes: HashMap::new(), tensors: Vec::new() };
        for (id, value) in graph.weights() {
            let tensor = match Form::in_graph(graph, id) {
                Some(Form::Matrix) => {
                    let bytes = mapped(value).unwrap_or_else(&mut next);
                    Tensor::Matrix(Matrix::new(value, bytes)?)
                }
                Some(Form::Vector) => Tensor::Vector(vector(value, source)?),
                None => continue,
            };
            weights.indexes.insert(value.name.clone(), weights.tensors.len());
            weights.tensors.push(tensor);
        }
        Ok(weights)
    }

    /// Where the weight of this name lies.
    pub(crate) fn index(&self, name: &str) -> Result<usize, Error> {
        let missing =
            || Error::new(format!("the weight '{name}' of the graph was not loaded with the others"));
        self.indexes.get(name).copied().ok_or_else(missing)
    }

    pub(crate) fn matrix(&self, index: usize) -> &Matrix {
        match &self.tensors[index] {
            Tensor::Matrix(matrix) => matrix,
            Tensor::Vector(_) => panic!("programs run with the weights that they were compiled for"),
        }
    }

    /// All matrices, in the order of the graph.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.tensors.iter().filter_map(|tensor| match tensor {
            Tensor::Matrix(matrix) => Some(matrix),
            Tensor::Vector(_) => None,
        })
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.tensors[index] {
            Tensor::Vector(vector) => vector,
            Tensor::Matrix(_) => panic!("programs run with the weights that they were compiled for"),
        }
    }
}

/// Fills a band, all zeros, of a weight; with memory for its stored bytes.
type FillBand<'a> = dyn Fn(&Value, usize, &mut Vec<u8>, &mut [u8]) -> Result<(), Error> + Sync + 'a;

/// The weights of `graph` that it takes for this.
fn of_form(graph: &Graph, form: Form) -> impl Iterator<Item = &Value> {
    let of_form = move |(id, _): &(ValueId, _)| Form::in_graph(graph, *id) == Some(form);
    graph.weights().filter(of_form).map(|(_, value)| value)
}

/// Where a matrix lies in the memory of all: one memory, because what does not
/// fill a huge page gets pages of the usual size, and matrices one by one left
/// a tenth of a model in these (of small ones, such as those of keys, all).
struct Place<'a> {
    value: &'a Value,
    range: Range<usize>,
    band_bytes: usize,
}

impl Place<'_> {
    /// One matrix after another, each from the start of a cache line on.
    fn of_all<'a>(matrices: impl Iterator<Item = &'a Value>) -> Result<Vec<Place<'a>>, Error> {
        let mut end = 0;
        let place = |value: &'a Value| {
            let (band_bytes, all) = Matrix::sizes(value)?;
            let next = all.checked_next_multiple_of(LINE).and_then(|all| all.checked_add(end));
            let start = end;
            end = next.ok_or_else(|| too_large(value))?;
            Ok(Place { value, range: start..start + all, band_bytes })
        };
        matrices.map(place).collect()
    }

    /// The bytes of all.
    fn end(places: &[Place<'_>]) -> usize {
        places.last().map_or(0, |place| place.range.end)
    }
}

/// A band to be filled.
struct Empty<'a> {
    value: &'a Value,
    band: usize,
    bytes: &'a mut [u8],
    /// Which part of its matrix it belongs to.
    part: usize,
    /// Its place among the bands of all matrices.
    number: usize,
}

/// The bands of all matrices: the first part of each matrix before the second
/// part of any, a part for each thread. Memory lies near the thread that first
/// writes to it, and in a step each begins with its own part of each matrix.
fn by_parts<'a>(places: &'a [Place<'_>], memory: &'a mut [u8], parts: usize) -> Vec<Empty<'a>> {
    let (mut all, mut rest, mut end) = (Vec::new(), memory, 0);
    for Place { value, range, band_bytes } in places {
        let taken = rest.split_off_mut(..range.end - end).expect("places are those of this memory");
        let bands = taken[range.start - end..].chunks_mut((*band_bytes).max(1));
        end = range.end;
        let count = bands.len();
        for (band, bytes) in bands.enumerate() {
            all.push(Empty { value, band, bytes, part: band * parts / count, number: all.len() });
        }
    }
    all.sort_by_key(|empty| empty.part);
    all
}

/// Has `fill` fill the bands of all matrices. They are one task, since threads
/// wait for each other at its end: for one that has lost its processor, which
/// something else may want meanwhile, that is milliseconds.
fn fill_all(places: &[Place<'_>], memory: &mut [u8], pool: &Pool, fill: &FillBand<'_>) -> Result<(), Error> {
    let mut bands = by_parts(places, memory, pool.threads());
    let mut buffers = vec![Vec::new(); pool.threads()];
    let failure = Failure::default();
    let grid = Grid { width: 1, row_step: 1, column_step: 1 };
    pool.tiles(&mut buffers, &mut bands, grid, |tile, buffer| {
        let index = tile.rows().start;
        let [Empty { value, band, bytes, number, .. }] = tile.row(index) else {
            unreachable!("a row is one band")
        };
        if failure.is_before(*number) {
            return;
        }
        if let Err(error) = fill(value, *band, buffer, bytes) {
            failure.note(*number, error);
        }
    });
    failure.outcome()
}

/// What is worth keeping of a graph's weights: the matrices that are packed.
/// The others are read as fast from where they come.
fn contents(graph: &Graph, identity: &[u8]) -> Option<Contents> {
    let matrices = graph.weights().filter_map(|(id, value)| {
        let layout = Layout::of(value.dtype);
        let is_packed =
            Form::in_graph(graph, id) == Some(Form::Matrix) && !matches!(layout, Layout::Stored(_));
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        is_packed.then_some(Listed { name: &value.name, layout, rows, columns })
    });
    Contents::of(&matrices.collect::<Vec<_>>(), identity)
}

/// Reads the rows of a band from where weights come, and packs them.
fn read_and_pack(
    value: &Value,
    source: &dyn WeightSource,
    band: usize,
    stored: &mut Vec<u8>,
    packed: &mut [u8],
) -> Result<(), Error> {
    let (dtype, rows) = (value.dtype, value.shape.rows());
    let all = dtype.bytes(&value.shape)?;
    let band_bytes = match dtype.tile().0 {
        1 => all / rows.max(1) * BAND,
        _ => all / bands(rows).max(1),
    };
    let start = band * band_bytes;
    stored.resize(band_bytes.min(all - start), 0);
    source.read(&value.name, start as u64, stored)?;
    pack_band(dtype, value.shape.columns(), stored, packed);
    Ok(())
}

/// A weight's values as `f32`.
fn vector(value: &Value, source: &dyn WeightSource) -> Result<Aligned<f32>, Error> {
    let mut bytes = Aligned::<u8>::zeroed(value.dtype.bytes(&value.shape)?, &value.name)?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut values = Aligned::zeroed(value.shape.elements(), &value.name)?;
    view.unpack_rows(0..view.rows(), &mut values);
    Ok(values)
}

/// A matrix of weights, `rows` outputs by `columns` inputs, in bands.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub layout: Layout,
    pub rows: usize,
    pub columns: usize,
    bytes: Shared,
    band_bytes: usize,
}

impl Matrix {
    /// A matrix of packed bands.
    fn new(value: &Value, bytes: Shared) -> Result<Matrix, Error> {
        let (band_bytes, all) = Matrix::sizes(value)?;
        assert_eq!(bytes.len(), all, "'{}' has the bytes of its layout", value.name);
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        Ok(Matrix { layout: Layout::of(value.dtype), rows, columns, bytes, band_bytes })
    }

    /// Bytes of a band, and of all bands.
    fn sizes(value: &Value) -> Result<(usize, usize), Error> {
        let band_bytes = Layout::of(value.dtype).band_bytes(value.shape.columns());
        let sizes = band_bytes.and_then(|band| Some((band, band.checked_mul(bands(value.shape.rows()))?)));
        sizes.ok_or_else(|| too_large(value))
    }

    /// The bytes that are read when all of it is.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// One band.
    pub fn band(&self, index: usize) -> Band<'_> {
        let bytes = &self.bytes[index * self.band_bytes..(index + 1) * self.band_bytes];
        Band { layout: self.layout, columns: self.columns, bytes }
    }

    /// All bands, and the bytes of each.
    pub fn all_bands(&self) -> (&[u8], usize) {
        (&self.bytes, self.band_bytes)
    }

    /// Whether kernels multiply its floats as they are packed.
    pub fn is_float(&self) -> bool {
        matches!(self.layout, Layout::Bf16 | Layout::F16 | Layout::F32)
    }

    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.columns.div_ceil(GROUP)
    }

    /// Up to [`FLOAT_DEPTH`] columns of a band from `first` on, as floats that
    /// are written to `lines`.
    pub fn decoded<'a>(
        &self,
        table: &Table,
        band: usize,
        first: usize,
        lines: &'a mut [u8; FLOAT_DEPTH * 2 * LINE],
    ) -> Band<'a> {
        let columns = FLOAT_DEPTH.min(self.columns - first);
        let mut put = |column: usize, row: usize, value: f32| {
            lines[(column * BAND + row) * 4..][..4].copy_from_slice(&value.to_le_bytes());
        };
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                (table.products.decode)(self.band(band), first / GROUP, columns.div_ceil(GROUP), &mut panels);
                for (row, column) in (0..BAND).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    put(column, row, number(coding, &panels, row, column));
                }
            }
            (Layout::Stored(dtype), _) => self.decoded_stored(dtype, band, first, columns, put),
            _ => unreachable!("floats are multiplied as they are packed"),
        }
        Band { layout: Layout::F32, columns, bytes: &lines[..columns * 2 * LINE] }
    }

    /// Hands on the numbers of columns of a band whose rows lie as their file
    /// holds them, number after number.
    fn decoded_stored(
        &self,
        dtype: DType,
        band: usize,
        first: usize,
        columns: usize,
        mut put: impl FnMut(usize, usize, f32),
    ) {
        let mut values = [0.0; FLOAT_DEPTH];
        let values = &mut values[..columns];
        for (row, bytes) in self.stored_rows(dtype, band).enumerate() {
            dtype.unpack(&bytes[first * dtype.block_bytes()..][..columns * dtype.block_bytes()], values);
            values.iter().enumerate().for_each(|(column, value)| put(column, row, *value));
        }
    }

    /// The rows of a band that lie as their file holds them.
    fn stored_rows(&self, dtype: DType, band: usize) -> impl Iterator<Item = &[u8]> {
        self.band(band).bytes.chunks_exact((self.columns * dtype.block_bytes()).max(1))
    }

    /// The numbers of one row.
    pub fn row(&self, index: usize, table: &Table, values: &mut [f32]) {
        let (band, row) = (self.band(index / BAND), index % BAND);
        let (unit, bytes) = self.layout.unit();
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for (block, values) in values.chunks_mut(DEPTH * GROUP).enumerate() {
                    let groups = values.len().div_ceil(GROUP);
                    (table.products.decode)(band, block * DEPTH, groups, &mut panels);
                    for (column, value) in values.iter_mut().enumerate() {
                        *value = number(coding, &panels, row, column);
                    }
                }
            }
            (Layout::Stored(dtype), _) => {
                let bytes = self.stored_rows(dtype, index / BAND).nth(row);
                dtype.unpack(bytes.expect("a band has all of its rows"), values);
            }
            _ => {
                for (column, value) in values.iter_mut().enumerate() {
                    *value = self.layout.float(&band.bytes[column / unit * bytes..], column % unit, row);
                }
            }
        }
    }
}

fn too_large(value: &Value) -> Error {
    Error::new(format!("the weight '{}' is larger than memory", value.name))
}

/// The number in row `row` and column `column` of decoded groups.
fn number(coding: Coding, panels: &[Panel; 2], row: usize, column: usize) -> f32 {
    let group = &panels[row / LANES][column / GROUP];
    let (lane, column) = (row % LANES, column % GROUP);
    let part = if coding.halves { column / (GROUP / 2) } else { 0 };
    let code = f32::from(group.codes[column / 4][4 * lane + column % 4]) - f32::from(coding.zero);
    let value = group.scales[part][lane] * code;
    if coding.minimums { value - group.minimums[part][lane] } else { value }
}

/// The first error of several pieces, in their order.
#[derive(Default)]
struct Failure(Mutex<Option<(usize, Error)>>);

impl Failure {
    /// Whether a piece before this one has failed, so that this one does not matter.
    fn is_before(&self, piece: usize) -> bool {
        let noted = self.0.lock().expect("nothing panics while it holds the lock");
        noted.as_ref().is_some_and(|(first, _)| *first < piece)
    }

    fn note(&self, piece: usize, error: Error) {
        let mut noted = self.0.lock().expect("nothing panics while it holds the lock");
        if noted.as_ref().is_none_or(|(first, _)| piece < *first) {
            *noted = Some((piece, error));
        }
    }

    fn outcome(self) -> Result<(), Error> {
        match self.0.into_inner().expect("nothing panics while it holds the lock") {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Extent, Role};
    use girih_tensor::Shape;

    use super::*;

    /// Each thread begins with its own part of every matrix, as in a step.
    #[test]
    fn parts_of_matrices_are_filled_together() {
        let value = |name: &str, rows| Value {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::matrix(rows, 4),
            role: Role::Weight,
            outermost: Extent::Fixed,
        };
        let values = [value("a", 4 * BAND), value("b", 1), value("c", 6 * BAND)];
        let places = Place::of_all(values.iter()).unwrap();
        assert!(places.iter().all(|place| place.range.start % LINE == 0));
        let mut memory = vec![0; Place::end(&places)];
        let bands = by_parts(&places, &mut memory, 2);
        let order: Vec<_> = bands.iter().map(|empty| (&*empty.value.name, empty.band)).collect();
        let first = [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)];
        let second = [("a", 2), ("a", 3), ("c", 3), ("c", 4), ("c", 5)];
        assert_eq!(order, [&first[..], &second].concat());
    }
}
