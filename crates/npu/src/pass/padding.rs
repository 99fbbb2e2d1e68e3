//! The sizes of tensors with padding: tiles must divide them.

use girih_graph::{Graph, Op, ValueId};
use girih_tensor::{Error, Result};

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
    granule: u32,
    /// The value that each value is a view of.
    roots: Vec<ValueId>,
    /// The multiple of columns of each value that is a view of heads: the values of one KV
    /// head and its query heads, so that padding is whole heads of whole groups.
    groups: Vec<Option<u32>>,
}

impl ColumnPadding {
    /// Finds the values that are views of heads.
    ///
    /// # Errors
    /// When heads are too large.
    pub fn new(graph: &Graph, target: &Target) -> Result<ColumnPadding> {
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
        Ok(ColumnPadding { granule: column_granule(target), roots, groups })
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
        let heads = self.groups[self.root(value).0 as usize];
        match heads.filter(|_| !columns.is_multiple_of(self.granule as usize)) {
            Some(heads) => padded(columns, common_multiple(self.granule, heads)?),
            None => padded(columns, self.granule),
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
