//! Matmuls of heads: each head of a row with a matrix of its own, which is packed in bands of its own.
//!
//! ```text
//! for each head (threads share them):   pack the head of all rows
//! for each band of each head's matrix:  y[row][head] = weight · x[row][head]
//! ```
//! A result is that of a matmul with one row, so it depends neither on the other rows, nor on threads. Bytes
//! moved: the packed weights, once for each step.

use girih_graph::{Graph, ValueId};

use super::executor::Executor;
use super::linear::{Epilogue, MatmulOperands, MatmulPiece, NARROW_PIECE_BANDS, bands_of_columns, local_len};
use super::product::pack_rows;
use crate::activations::{ActivationKind, PackedActivations};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::packed::{BAND, NARROW};
use crate::pool::Grid;
use crate::step::CpuStep;

/// The node.
struct HeadMatmul {
    kind: ActivationKind,
    x: ValueId,
    weight: ValueId,
    y: ValueId,
    /// Numbers of a head of `x`.
    inputs: usize,
}

/// Binds a node whose activations are of this kind.
///
/// # Errors
/// If the weights cannot be multiplied.
pub(crate) fn bind(
    graph: &Graph,
    kind: ActivationKind,
    [x, weight]: [ValueId; 2],
    y: ValueId,
) -> Result<BoundOp, String> {
    let dtype = graph.value(weight).dtype;
    if dtype.tile().0 != 1 {
        return Err(format!("matrices of heads are stored as {dtype}, whose blocks have several rows"));
    }
    let &[heads, _, inputs] = graph.value(weight).shape.extents() else {
        return Err("its matrices have no three dimensions".to_owned());
    };
    let rows = graph.value(x).shape.rows() / heads;
    let words = heads.saturating_mul(kind.size(rows, inputs));
    let scratch = OpScratch { local: local_len(rows * kind.terms(), 0), partials: 0, words };
    let node = HeadMatmul { kind, x, weight, y, inputs };
    Ok(BoundOp { scratch, ..BoundOp::new(move |step| node.run(step)) })
}

/// The columns of a piece: whole bands, of which the matrix has a whole number of pieces, or all of them.
fn column_step(outputs: usize) -> usize {
    let bands = (1..=NARROW_PIECE_BANDS).rev().find(|bands| outputs.is_multiple_of(bands * BAND));
    bands.map_or(outputs, |bands| bands * BAND)
}

impl HeadMatmul {
    fn run(&self, step: &mut CpuStep<'_>) {
        let CpuStep { executor, values, weights, .. } = step;
        let HeadMatmul { kind, inputs, .. } = *self;
        let matrices = weights.experts(self.weight);
        let (heads, outputs) = (matrices.len(), matrices[0].rows);
        let (y, [x]) = values.split(self.y, [self.x]);
        let Executor { table, pool, locals, words, variant, .. } = executor;
        let table = *table;
        let rows = x.len() / (heads * inputs);
        let way = match rows {
            0 | 1 => "gemv",
            _ if rows * kind.terms() <= NARROW => "small",
            _ => "gemm",
        };
        *variant = [way, table.name, kind.name(), matrices[0].layout.name()];

        let each = kind.size(rows, inputs);
        let words = &mut words[..heads * each];
        pool.tiles(
            locals,
            words,
            Grid { width: each.max(1), row_step: 1, column_step: each.max(1) },
            |tile, _| {
                for head in tile.rows() {
                    let row = |row: usize| &x[(row * heads + head) * inputs..][..inputs];
                    pack_rows(table, kind, rows, row, tile.row(head));
                }
            },
        );
        let words = &*words;
        let grid = Grid { width: heads * outputs, row_step: usize::MAX, column_step: column_step(outputs) };
        pool.tiles(locals, y, grid, |tile, scratch| {
            let head = tile.columns().start / outputs;
            let base = head * outputs;
            let all = bands_of_columns(tile.columns().start - base..tile.columns().end - base);
            let x = PackedActivations { kind, rows, width: inputs, words: &words[head * each..][..each] };
            let first = MatmulOperands { x, weight: &matrices[head], bias: None, adapters: None };
            for start in all.clone().step_by(NARROW_PIECE_BANDS) {
                let (bands, tile) = (start..all.end.min(start + NARROW_PIECE_BANDS), &mut *tile);
                let epilogue = Epilogue::Store;
                MatmulPiece { table, first, gated: None, epilogue, bands, base, tile }.compute(scratch);
            }
        });
    }
}
