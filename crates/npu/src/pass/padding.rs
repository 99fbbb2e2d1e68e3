//! The sizes of tensors with padding: tiles must divide them.

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::{DType, Error, Result};

use crate::form::weights::{TILE_COLUMNS, TILE_ROWS};
use crate::target::Target;

/// The multiple to which columns of tensors are padded: two blocks of the matrix
/// instruction for every row of cores.
fn column_granule(target: &Target) -> u32 {
    16 * target.array.compute_rows
}

/// The multiple to which the rows of a step are padded: two blocks of four rows
/// for every column of cores.
pub(super) fn row_granule(target: &Target) -> u32 {
    8 * target.array.columns
}

/// The padded columns of the values of a graph.
pub(super) struct ColumnPadding {
    /// The multiple of columns of each value that is no view.
    granules: Vec<u32>,
    /// The value that each value is a view of.
    roots: Vec<ValueId>,
    /// The multiple of columns of each value that is a view of heads: the values of one KV
    /// head and its query heads, so that padding is whole heads of whole groups.
    groups: Vec<Option<u32>>,
}

impl ColumnPadding {
    /// Finds the values that are views of heads, and those that meet Q4NX weights. `dtype`
    /// returns the format in which the array holds a weight.
    ///
    /// # Errors
    /// When heads are too large.
    pub fn new(graph: &Graph, target: &Target, dtype: impl Fn(ValueId) -> DType) -> Result<ColumnPadding> {
        let mut roots: Vec<ValueId> = (0..graph.values.len()).map(|index| ValueId(index as u32)).collect();
        for node in graph.nodes.iter().filter(|node| node.op == Op::Reshape) {
            roots[node.output.0 as usize] = roots[node.inputs[0].0 as usize];
        }
        let mut groups = vec![None; roots.len()];
        for (value, root) in graph.values.iter().zip(&roots) {
            let &[_, _, columns] = value.shape.extents() else { continue };
            let mut all = size(columns)?;
            for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. })) {
                let heads = |operand: usize| graph.value(node.inputs[operand]).shape;
                if heads(0).columns() == columns {
                    all = common_multiple(all, size(heads(0).stride() / (heads(1).stride() / columns))?)?;
                }
            }
            groups[root.0 as usize] = Some(all);
        }
        let granules = granules(graph, &roots, target, dtype)?;
        Ok(ColumnPadding { granules, roots, groups })
    }

    /// The value that a value is a view of.
    pub fn root(&self, value: ValueId) -> ValueId {
        self.roots[value.0 as usize]
    }

    /// Columns with padding of a value that has `columns` of them.
    ///
    /// # Errors
    /// When they exceed 32 bits.
    pub fn wide(&self, value: ValueId, columns: usize) -> Result<u32> {
        let root = self.root(value).0 as usize;
        let (granule, heads) = (self.granules[root], self.groups[root]);
        match heads.filter(|_| !columns.is_multiple_of(granule as usize)) {
            Some(heads) => padded(columns, common_multiple(granule, heads)?),
            None => padded(columns, granule),
        }
    }
}

/// The multiple of columns of each value: whole tiles of Q4NX weights that it meets. Values that
/// an operation takes and makes element by element are equally wide.
fn granules(
    graph: &Graph,
    roots: &[ValueId],
    target: &Target,
    dtype: impl Fn(ValueId) -> DType,
) -> Result<Vec<u32>> {
    let mut granules = vec![column_granule(target); roots.len()];
    let root = |value: ValueId| roots[value.0 as usize].0 as usize;
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        if dtype(node.inputs[1]) == DType::Q4NX {
            let (x, y) = (root(node.inputs[0]), root(node.output));
            granules[x] = common_multiple(granules[x], TILE_COLUMNS)?;
            granules[y] = common_multiple(granules[y], TILE_ROWS * target.array.compute_rows)?;
        }
    }
    loop {
        let mut changed = false;
        for node in &graph.nodes {
            let operands = match node.op {
                Op::Norm { .. } | Op::Rope { .. } | Op::Attend { .. } => 1,
                Op::Gate { .. } | Op::Add => 2,
                // Weights decide the widths of a matmul, and the array computes none of the others.
                Op::Linear
                | Op::Embed
                | Op::Splice
                | Op::LayerNorm { .. }
                | Op::Reshape
                | Op::Write
                | Op::Activate { .. }
                | Op::ShortConv
                | Op::Route { .. }
                | Op::Experts { .. }
                | Op::Scale { .. }
                | Op::Softcap { .. }
                | Op::Gather
                | Op::Pool { .. } => continue,
            };
            let alike = node.inputs[..operands].iter().chain([&node.output]).map(|value| root(*value));
            let alike: Vec<usize> = alike.collect();
            let all = alike.iter().try_fold(1, |all, &value| common_multiple(all, granules[value]))?;
            for value in alike {
                changed |= std::mem::replace(&mut granules[value], all) != all;
            }
        }
        if !changed {
            return Ok(granules);
        }
    }
}

/// The least common multiple.
fn common_multiple(a: u32, b: u32) -> Result<u32> {
    let (mut divisor, mut rest) = (a.max(1), b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let all = (a / divisor).checked_mul(b);
    all.ok_or_else(|| Error::new(format!("the least common multiple of {a} and {b} exceeds 32 bits")))
}

/// An extent as a number of 32 bits.
pub(super) fn size(extent: usize) -> Result<u32> {
    u32::try_from(extent).map_err(|_| Error::new(format!("an extent of {extent} exceeds 32 bits")))
}

pub(super) fn padded(extent: usize, granule: u32) -> Result<u32> {
    let whole = size(extent)?.div_ceil(granule).checked_mul(granule);
    whole.ok_or_else(|| Error::new(format!("an extent of {extent} exceeds 32 bits")))
}
