//! The sizes of tensors with padding: tiles must divide them.

use girih_graph::{Graph, ValueId};
use girih_tensor::{DType, Error, Result};

use super::site::{Answer, ArrayOp, ArrayOperand};
use super::tile::gemv_side;
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
    /// The multiple of columns of each value that is a view of heads, or as wide as one: the values of one KV
    /// head and its query heads, so that padding is whole heads of whole groups. 1 for others.
    groups: Vec<u32>,
}

impl ColumnPadding {
    /// Finds the values that are views of heads, and those that meet Q4NX weights, in the array's answers to
    /// the nodes of a graph. `dtype` returns the format in which the array holds a weight.
    ///
    /// # Errors
    /// When heads are too large.
    pub fn new(
        graph: &Graph,
        answers: &[Answer],
        target: &Target,
        dtype: impl Fn(ValueId) -> DType,
    ) -> Result<ColumnPadding> {
        let mut roots: Vec<ValueId> = (0..graph.values.len()).map(|index| ValueId(index as u32)).collect();
        for (node, answer) in graph.nodes.iter().zip(answers) {
            if let Answer::View(of) = answer {
                roots[node.output.0 as usize] = roots[of.0 as usize];
            }
        }
        let operands = answers.iter().filter_map(Answer::program).flat_map(|node| &node.operands);
        let attended = operands.filter_map(|operand| match *operand {
            ArrayOperand::Chunks { queries, keys, .. } => {
                Some([queries, keys].map(|id| graph.value(id).shape))
            }
            _ => None,
        });
        let attended: Vec<_> = attended.collect();
        let mut groups = vec![1; roots.len()];
        for (value, root) in graph.values.iter().zip(&roots) {
            let &[_, _, columns] = value.shape.extents() else { continue };
            let mut all = size(columns)?;
            for [queries, keys] in attended.iter().filter(|[queries, _]| queries.columns() == columns) {
                all = common_multiple(all, size(queries.stride() / (keys.stride() / columns))?)?;
            }
            groups[root.0 as usize] = all;
        }
        let alike = equally_wide(graph, answers, &roots);
        // What is as wide as a view of heads, such as the norm of a row that is mixed as one head, gets the padding of that view.
        equalize(&mut groups, &alike)?;
        let mut granules = granules(answers, &roots, target, dtype)?;
        equalize(&mut granules, &alike)?;
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
        let is_whole = columns.is_multiple_of(granule as usize);
        padded(columns, if is_whole { granule } else { common_multiple(granule, heads)? })
    }
}

/// The multiple of columns of each value: whole tiles of Q4NX weights that it meets.
fn granules(
    answers: &[Answer],
    roots: &[ValueId],
    target: &Target,
    dtype: impl Fn(ValueId) -> DType,
) -> Result<Vec<u32>> {
    let mut granules = vec![column_granule(target); roots.len()];
    let root = |value: ValueId| roots[value.0 as usize].0 as usize;
    for program in answers.iter().filter_map(Answer::program) {
        for operand in &program.operands {
            let ArrayOperand::Weight(weight, [Some(y), Some(x)]) = *operand else { continue };
            if dtype(weight) != DType::Q4NX {
                continue;
            }
            let (x, y) = (root(x), root(y));
            granules[x] = common_multiple(granules[x], TILE_COLUMNS)?;
            let cores = match program.op {
                // The head is large: equal shares for all cores of its launch cost little.
                ArrayOp::Linear { each_output_row: true, .. } => target.array.columns * gemv_side(target),
                _ => target.array.compute_rows,
            };
            granules[y] = common_multiple(granules[y], TILE_ROWS * cores)?;
        }
    }
    Ok(granules)
}

/// The values that each program takes and makes, other than a matrix product: they are equally wide.
fn equally_wide(graph: &Graph, answers: &[Answer], roots: &[ValueId]) -> Vec<Vec<usize>> {
    let root = |value: ValueId| roots[value.0 as usize].0 as usize;
    let mut all = Vec::new();
    for (node, answer) in graph.nodes.iter().zip(answers) {
        let Some(program) = answer.program() else { continue };
        if matches!(program.op, ArrayOp::Linear { .. }) {
            continue;
        }
        let rows = program.operands.iter().filter_map(|operand| match *operand {
            ArrayOperand::Rows(value) => Some(root(value)),
            _ => None,
        });
        all.push(std::iter::once(root(node.output)).chain(rows).collect());
    }
    all
}

/// Gives values that are equally wide their least common multiple.
fn equalize(multiples: &mut [u32], equally_wide: &[Vec<usize>]) -> Result<()> {
    loop {
        let mut changed = false;
        for alike in equally_wide {
            let all = alike.iter().try_fold(1, |all, &value| common_multiple(all, multiples[value]))?;
            for &value in alike {
                changed |= std::mem::replace(&mut multiples[value], all) != all;
            }
        }
        if !changed {
            return Ok(());
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
