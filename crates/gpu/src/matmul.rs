//! Products with matrices as launches: a kernel for few rows and one for many, with the same bits.

use crate::device::BufferPart;
use crate::kernel::GpuKernel;
use crate::launch::{BufferRef, Count, GpuLaunch, Instruction, LaunchGrid};
use crate::layout::BAND;
use crate::matrix::MatrixShape;
use crate::weights::MatrixPiece;

/// Up to this number of rows `gemv` runs.
const FEW_ROWS: u32 = 8;

/// Rows that `gemv` computes at once.
const ROWS_AT_ONCE: u32 = 4;

/// Weight rows of a tile of `gemm`.
const TILE: u32 = 64;

/// Up to this number of rows the tiles of `gemm` are small.
const SOME_ROWS: u32 = 64;

/// The rows of an invocation of `gemm` in small and in large tiles, which have 16 times as many.
const EACH: [u32; 2] = [4, 8];

/// A matrix, or several, with its pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixRef<'a> {
    pub shape: MatrixShape,
    pub pieces: &'a [MatrixPiece],
}

fn optional(part: Option<&BufferPart>) -> (u32, BufferRef) {
    part.map_or((0, BufferRef::Unread), |part| (1, BufferRef::Weight(part.clone())))
}

/// What a product writes.
#[derive(Clone, Debug)]
pub(crate) enum ProductTarget {
    /// All rows of the matrix are one result, to which a residual may be added.
    One { y: BufferRef, residual: Option<BufferRef> },
    /// The rows of the matrix are those of several results, each with its number of rows; at most three.
    Several(Vec<(BufferRef, u32)>),
}

impl ProductTarget {
    /// The residual and the results; then where the rows of the first and of the second one end, and whether there is a
    /// residual.
    fn parts(&self) -> ([BufferRef; 4], [u32; 3]) {
        let unwritten = |index| BufferRef::Unwritten(index);
        match self {
            ProductTarget::One { y, residual } => {
                let has_residual = u32::from(residual.is_some());
                let residual = residual.clone().unwrap_or(BufferRef::Unread);
                ([residual, y.clone(), unwritten(0), unwritten(1)], [u32::MAX, u32::MAX, has_residual])
            }
            ProductTarget::Several(results) => {
                let result = |index: usize| results.get(index).map(|(y, _)| y.clone());
                let end = |count: usize| results.iter().take(count).map(|(_, rows)| rows).sum();
                let [y, y1, y2] = [0, 1, 2].map(|index| result(index).unwrap_or(unwritten(index)));
                ([BufferRef::Unread, y, y1, y2], [end(1), end(2), 0])
            }
        }
    }
}

/// `x · weightᵀ + bias`; with several matrices, each head of a row times its own. `x` has rows of padded heads.
pub(crate) fn product(
    x: &BufferRef,
    matrix: MatrixRef<'_>,
    bias: Option<&BufferPart>,
    target: &ProductTarget,
    count: Count,
) -> Vec<Instruction> {
    let MatrixRef { shape, pieces } = matrix;
    let (has_bias, bias) = optional(bias);
    let (heads, groups) = (shape.count as u32, shape.groups() as u32);
    let ([residual, y, y1, y2], ends) = target.parts();
    // The width of the first result.
    let width = ends[0].min(shape.rows as u32);
    let of_piece = |piece: &MatrixPiece| {
        // Several matrices are one piece (`refuse.rs`).
        let (bands, first) = match shape.count {
            1 => (piece.bands, piece.first * BAND),
            _ => (shape.bands(), 0),
        };
        let rows = (shape.rows - first).min(bands * BAND) as u32;
        let x_head = groups * 8;
        let strides = [x_head * heads, x_head, width * heads, width];
        let words =
            [&[0, groups, rows, first as u32][..], &strides, &[bands as u32, has_bias, 0], &ends].concat();
        let binds = [
            BufferRef::Weight(piece.codes.clone()),
            BufferRef::Weight(piece.scales.clone()),
            x.clone(),
            bias.clone(),
            BufferRef::Unread,
            residual.clone(),
            y.clone(),
            y1.clone(),
            y2.clone(),
        ];
        let launch = |kernel, x: u32, rows| GpuLaunch {
            id: 0,
            kernel,
            binds: binds.to_vec(),
            words: words.clone(),
            count,
            grid: LaunchGrid::Tiles { x, rows, z: heads, each: 1 },
        };
        let bands = bands as u32;
        let tiles = bands.div_ceil(TILE / BAND as u32);
        Instruction::ByRows(vec![
            (1, launch(GpuKernel::Gemv(shape.layout, 1), bands, 1)),
            (FEW_ROWS, launch(GpuKernel::Gemv(shape.layout, ROWS_AT_ONCE), bands, ROWS_AT_ONCE)),
            (SOME_ROWS, launch(GpuKernel::Gemm(shape.layout, EACH[0]), tiles, 16 * EACH[0])),
            (u32::MAX, launch(GpuKernel::Gemm(shape.layout, EACH[1]), tiles, 16 * EACH[1])),
        ])
    };
    pieces.iter().map(of_piece).collect()
}

/// The rows that enter the experts of a row.
#[derive(Clone, Debug)]
pub(crate) struct EnteringRows {
    pub buffer: BufferRef,
    /// Experts that share a row: those of one row, or one.
    pub shared_by: u32,
}

/// For each expert of each row, the product with its matrix. `chosen` lists the experts of all rows, `used` each.
pub(crate) fn expert_product(
    x: &EnteringRows,
    matrix: MatrixRef<'_>,
    bias: Option<&BufferPart>,
    (chosen, used): (&BufferRef, u32),
    y: &BufferRef,
    count: Count,
) -> Vec<Instruction> {
    let MatrixRef { shape, pieces } = matrix;
    let (has_bias, bias) = optional(bias);
    let groups = shape.groups() as u32;
    let (bands, rows) = (shape.bands() as u32, shape.rows as u32);
    let of_piece = |piece: &MatrixPiece| {
        let (first, experts) = (piece.first / shape.bands(), piece.bands / shape.bands());
        let words = vec![
            0,
            groups,
            experts as u32,
            first as u32,
            groups * 8,
            0,
            rows,
            rows,
            bands,
            has_bias,
            x.shared_by,
            u32::MAX,
            u32::MAX,
            0,
        ];
        Instruction::Launch(GpuLaunch {
            id: 0,
            kernel: GpuKernel::ExpertGemv(shape.layout),
            binds: vec![
                BufferRef::Weight(piece.codes.clone()),
                BufferRef::Weight(piece.scales.clone()),
                x.buffer.clone(),
                bias.clone(),
                chosen.clone(),
                BufferRef::Unread,
                y.clone(),
                BufferRef::Unwritten(0),
                BufferRef::Unwritten(1),
            ],
            words,
            count,
            grid: LaunchGrid::Tiles { x: bands, rows: 1, z: 1, each: used },
        })
    };
    pieces.iter().map(of_piece).collect()
}
