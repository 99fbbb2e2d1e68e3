//! How the nodes of a graph use a weight: as a matrix, or number by number.

use girih_graph::{Graph, OperandKind, Value, ValueId};
use girih_tensor::Result;

use crate::layout::BandLayout;
use crate::matrix::MatrixShape;

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
