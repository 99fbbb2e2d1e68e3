//! Products with matrices as launches: a kernel for few rows and one for many, with the same bits.

use crate::driver::BufferPart;
use crate::integer_source::ProductUnit;
use crate::kernel::{GpuKernel, KernelTuning};
use crate::launch::{BufferRef, Count, GpuLaunch, Instruction, LaunchGrid};
use crate::layout::{BAND, ScaleKind};
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

/// Rows of a tile of matrix units.
const MATRIX_TILE: u32 = 128;

/// A matrix, or several, with its pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixRef<'a> {
    pub shape: MatrixShape,
    pub pieces: &'a [MatrixPiece],
    /// How its kernels are tuned if rows are rounded to integers before they are multiplied.
    pub integers: Option<KernelTuning>,
}

/// A kernel for up to this number of rows, with its workgroups.
struct ProductVariant {
    most_rows: u32,
    kernel: GpuKernel,
    /// Workgroups of all weight rows.
    x: u32,
    /// Rows of a workgroup.
    rows: u32,
    /// For what rows are rounded before, by another launch.
    rounded_for: Option<ProductUnit>,
}

impl MatrixRef<'_> {
    /// The kernels for some bands, few rows first.
    fn variants(&self, bands: u32) -> Vec<ProductVariant> {
        let layout = self.shape.layout;
        let few = |most_rows, rows| {
            let (kernel, x) = match self.integers {
                None => (GpuKernel::Gemv(layout, rows), bands),
                Some(tuning) => {
                    let all = bands * self.shape.count as u32;
                    let shape = tuning.gemv_shape(rows, all, self.shape.groups() as u32);
                    (GpuKernel::IntegerGemv(layout, shape), bands * (BAND as u32 / shape.lanes))
                }
            };
            ProductVariant { most_rows, kernel, x, rows, rounded_for: None }
        };
        let many = |most_rows, each| {
            let (kernel, rounded_for) = match self.integers {
                None => (GpuKernel::Gemm(layout, each), None),
                Some(_) => (GpuKernel::IntegerGemm(layout, each), Some(ProductUnit::Dot)),
            };
            let x = bands.div_ceil(TILE / BAND as u32);
            ProductVariant { most_rows, kernel, x, rows: 16 * each, rounded_for }
        };
        let most = match self.integers {
            // Two scales of a group leave no registers for large tiles.
            Some(KernelTuning { unit: ProductUnit::IntegerMatrix, .. })
                if layout.scales != ScaleKind::Half =>
            {
                many(u32::MAX, EACH[0])
            }
            Some(KernelTuning { unit, .. }) if unit != ProductUnit::Dot => ProductVariant {
                most_rows: u32::MAX,
                kernel: GpuKernel::MatrixGemm(layout, unit),
                x: bands.div_ceil(unit.tile_weight_rows() / BAND as u32),
                rows: MATRIX_TILE,
                rounded_for: Some(unit),
            },
            _ => many(u32::MAX, EACH[1]),
        };
        vec![few(1, 1), few(FEW_ROWS, ROWS_AT_ONCE), many(SOME_ROWS, EACH[0]), most]
    }

    /// Rounds rows before products of many, if kernels of this matrix need it.
    pub fn round(&self, x: &BufferRef, rounded: &[BufferRef; 2], count: Count) -> Option<Instruction> {
        let groups = self.shape.count * self.shape.groups();
        let launch = |unit| {
            let binds = [&[x.clone()][..], rounded].concat();
            GpuLaunch::elements(GpuKernel::Round(unit), binds, vec![0], count, groups)
        };
        let needs = |variant: ProductVariant| Some((variant.most_rows, variant.rounded_for?));
        let variants: Vec<_> = self
            .variants(1)
            .into_iter()
            .filter_map(needs)
            .map(|(most_rows, unit)| (most_rows, launch(unit)))
            .collect();
        (!variants.is_empty()).then_some(Instruction::Above(FEW_ROWS, variants))
    }
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

/// `x · weightᵀ + bias`; with several matrices, each head of a row times its own. `x` has rows of padded heads, and
/// `rounded` what [`MatrixRef::round`] makes of them.
pub(crate) fn product(
    x: &BufferRef,
    rounded: &[BufferRef; 2],
    matrix: MatrixRef<'_>,
    bias: Option<&BufferPart>,
    target: &ProductTarget,
    count: Count,
) -> Vec<Instruction> {
    let MatrixRef { shape, pieces, .. } = matrix;
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
        let launch = |variant: ProductVariant| {
            let [entering, scales] = match variant.rounded_for {
                Some(_) => rounded.clone(),
                None => [x.clone(), BufferRef::Unread],
            };
            let binds = vec![
                BufferRef::Weight(piece.codes.clone()),
                BufferRef::Weight(piece.scales.clone()),
                entering,
                bias.clone(),
                scales,
                residual.clone(),
                y.clone(),
                y1.clone(),
                y2.clone(),
            ];
            let ProductVariant { most_rows, kernel, x, rows, .. } = variant;
            let grid = LaunchGrid::Tiles { x, rows, z: heads, each: 1 };
            (most_rows, GpuLaunch { id: 0, kernel, binds, words: words.clone(), count, grid })
        };
        Instruction::ByRows(matrix.variants(bands as u32).into_iter().map(launch).collect())
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
    let MatrixRef { shape, pieces, integers } = matrix;
    let (has_bias, bias) = optional(bias);
    let groups = shape.groups() as u32;
    let (bands, rows) = (shape.bands() as u32, shape.rows as u32);
    let (kernel, x_groups) = match integers {
        None => (GpuKernel::ExpertGemv(shape.layout), bands),
        Some(tuning) => {
            let of_shape = tuning.gemv_shape(1, bands * used, groups);
            (GpuKernel::IntegerExpertGemv(shape.layout, of_shape), bands * (BAND as u32 / of_shape.lanes))
        }
    };
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
            kernel,
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
            grid: LaunchGrid::Tiles { x: x_groups, rows: 1, z: 1, each: used },
        })
    };
    pieces.iter().map(of_piece).collect()
}
