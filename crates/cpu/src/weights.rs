//! Weights as this device holds them: matrices in the format of their file,
//! vectors as `f32`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use girih_graph::{Error, Graph, Op, Value, ValueId, WeightSource};
use girih_tensor::{DType, View};

use crate::kernels::{QUAD, Table};
use crate::memory::Aligned;
use crate::pool::{Grid, Pool};

/// Bytes of a matrix that one thread reads at a time.
const PIECE: usize = 16 << 20;

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
        match (op, index) {
            (Op::Linear | Op::Embed, 1) => Some(Form::Matrix),
            (Op::Norm { .. } | Op::Rope { .. }, 1) | (Op::Linear, 2) => Some(Form::Vector),
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

    /// The bytes that a weight of this form takes.
    fn bytes(self, value: &Value) -> u64 {
        match (self, value.dtype) {
            (Form::Vector, _) | (_, DType::F32) => Aligned::<f32>::bytes(value.shape.elements()),
            _ => Aligned::<u8>::bytes(value.dtype.bytes(&value.shape).unwrap_or(usize::MAX)),
        }
    }
}

impl Weights {
    /// The bytes that the weights of `graph` take.
    pub(crate) fn plan(graph: &Graph) -> u64 {
        let sizes = graph.weights().filter_map(|(id, value)| Some(Form::in_graph(graph, id)?.bytes(value)));
        sizes.fold(0, u64::saturating_add)
    }

    /// Reads the weights of `graph`, a large one with all threads at once.
    pub(crate) fn load(graph: &Graph, source: &dyn WeightSource, pool: &Pool) -> Result<Weights, Error> {
        let mut weights = Weights { indexes: HashMap::new(), tensors: Vec::new() };
        for (id, value) in graph.weights() {
            let tensor = match Form::in_graph(graph, id) {
                Some(Form::Matrix) => Tensor::Matrix(Matrix::load(value, source, pool)?),
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

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.tensors[index] {
            Tensor::Vector(vector) => vector,
            Tensor::Matrix(_) => panic!("programs run with the weights that they were compiled for"),
        }
    }
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

/// A matrix of weights, `rows` outputs by `columns` inputs.
#[derive(Debug)]
pub(crate) struct Matrix {
    dtype: DType,
    pub rows: usize,
    pub columns: usize,
    data: Data,
}

/// The stored bytes; floats that need no decoding are kept as what they are.
#[derive(Debug)]
enum Data {
    Floats(Aligned<f32>),
    Blocks(Aligned<u8>),
}

impl Matrix {
    fn load(value: &Value, source: &dyn WeightSource, pool: &Pool) -> Result<Matrix, Error> {
        let (dtype, rows, columns) = (value.dtype, value.shape.rows(), value.shape.columns());
        let data = if dtype == DType::F32 {
            let mut floats = Aligned::zeroed(value.shape.elements(), &value.name)?;
            let mut bytes = vec![Vec::new(); pool.threads()];
            pieces(pool, &mut floats, &mut bytes, |start, floats: &mut [f32], bytes| {
                bytes.resize(size_of_val(floats), 0);
                source.read(&value.name, (start * size_of::<f32>()) as u64, bytes)?;
                DType::F32.unpack(bytes, floats);
                Ok(())
            })?;
            Data::Floats(floats)
        } else {
            let mut blocks = Aligned::zeroed(dtype.bytes(&value.shape)?, &value.name)?;
            let mut nothing = vec![(); pool.threads()];
            pieces(pool, &mut blocks, &mut nothing, |start, bytes: &mut [u8], ()| {
                source.read(&value.name, start as u64, bytes)
            })?;
            Data::Blocks(blocks)
        };
        Ok(Matrix { dtype, rows, columns, data })
    }

    /// Rows that are decoded together for so many rows of a step: what a kernel
    /// takes at once, which stays nearest to it, for one; enough for each
    /// activation to be fetched seldom, for several. At least a tile of the
    /// format, whose rows cannot be had apart.
    pub fn band(dtype: DType, rows: usize) -> usize {
        let least = if rows == 1 { QUAD } else { 4 * QUAD };
        least.next_multiple_of(dtype.tile().0)
    }

    /// The dtype's [`Matrix::band`].
    pub fn band_rows(&self, rows: usize) -> usize {
        Matrix::band(self.dtype, rows)
    }

    /// Numbers of scratch that decoding `rows` rows of `columns` takes.
    pub fn scratch(dtype: DType, rows: usize, columns: usize) -> usize {
        match dtype.tile() {
            _ if dtype == DType::F32 => 0,
            (1, _) => rows * columns,
            (tile_rows, tile_columns) => rows * columns + tile_rows * tile_columns,
        }
    }

    /// The values of `rows`, decoded into `scratch` unless they need not be.
    pub fn values<'a>(&'a self, rows: Range<usize>, table: &Table, scratch: &'a mut [f32]) -> &'a [f32] {
        let cells = rows.start * self.columns..rows.end * self.columns;
        let blocks = match &self.data {
            Data::Floats(floats) => return &floats[cells],
            Data::Blocks(blocks) => blocks,
        };
        let (values, tile) = scratch.split_at_mut(cells.len());
        let (tile_rows, tile_columns) = self.dtype.tile();
        if tile_rows == 1 {
            let row_bytes = self.columns / tile_columns * self.dtype.block_bytes();
            table.unpack(self.dtype, &blocks[rows.start * row_bytes..rows.end * row_bytes], values);
        } else {
            self.unpack_tiles(rows, blocks, table, values, &mut tile[..tile_rows * tile_columns]);
        }
        values
    }

    /// Decodes rows out of two-dimensional blocks, each block once, by way of `tile`.
    fn unpack_tiles(
        &self,
        rows: Range<usize>,
        blocks: &[u8],
        table: &Table,
        values: &mut [f32],
        tile: &mut [f32],
    ) {
        let (tile_rows, tile_columns) = self.dtype.tile();
        let across = self.columns.div_ceil(tile_columns);
        let bands = rows.start / tile_rows..rows.end.div_ceil(tile_rows);
        let block_bytes = self.dtype.block_bytes();
        for block in bands.start * across..bands.end * across {
            table.unpack(self.dtype, &blocks[block * block_bytes..(block + 1) * block_bytes], tile);
            let (top, left) = (block / across * tile_rows, block % across * tile_columns);
            let width = tile_columns.min(self.columns - left);
            for row in rows.start.max(top)..rows.end.min(top + tile_rows) {
                let (to, from) = ((row - rows.start) * self.columns + left, (row - top) * tile_columns);
                values[to..to + width].copy_from_slice(&tile[from..from + width]);
            }
        }
    }
}

/// Fills `data` piece by piece, in all threads. `read` gets the index of the
/// piece's first element; of several errors, the one of the first piece counts.
fn pieces<T: Send, L: Send>(
    pool: &Pool,
    data: &mut [T],
    locals: &mut [L],
    read: impl Fn(usize, &mut [T], &mut L) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let grid = Grid { width: data.len().max(1), row_step: 1, column_step: PIECE / size_of::<T>() };
    pool.tiles(locals, data, grid, |tile, local| {
        let start = tile.columns().start;
        if let Err(error) = read(start, tile.row(0), local) {
            let mut failure = failure.lock().expect("nothing panics while it holds the lock");
            if failure.as_ref().is_none_or(|(first, _)| start < *first) {
                *failure = Some((start, error));
            }
        }
    });
    match failure.into_inner().expect("nothing panics while it holds the lock") {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}
