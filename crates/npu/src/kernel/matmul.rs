//! Matmuls: matrix by matrix, matrix by vector, and matrix by matrix in int8.
//!
//! The matrix instruction of AIE2P multiplies a block of 4 × 8 by one of 8 × 8
//! (`mac_4x8_8x8_bf16`). A tile has the layout that the instruction loads: row
//! of blocks by row of blocks, each block row-major. The right operand has one
//! row per column of the result, as weights do.
//!
//! ```text
//! a [m/4][k/8][4][8]    b [n/8][k/8][8][8]    c [m/4][n/8][4][8]    c += a · bᵀ
//! ```
//!
//! Each element of `c` is one f32 sum over `k` in ascending order, continued
//! from call to call. The product of two bf16 is exact in f32, so each step
//! rounds once.

use girih_tensor::DType;

use super::bfp16;
use super::entry::{
    Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, blocks, matrix, vector, whole,
};

/// Rows of a block of `a` and `c`.
const BLOCK_ROWS: u32 = 4;
/// Columns of a block, and rows of a block of `b`.
const BLOCK_SIDE: u32 = 8;
/// Vector lanes that sum a row of a matrix-vector product.
const GEMV_LANES: usize = 64;

/// `c += a · bᵀ`, with the times of the hand-written kernel of mlir-air
/// (`mm_aie2p.cc`).
pub(super) const GEMM_BF16: KernelEntry = gemm("gemm_bf16");
/// The same matmul, with the times of the compiler's own code (`--codegen
/// direct`).
pub(super) const GEMM_BF16_DIRECT: KernelEntry = gemm("gemm_bf16_direct");
/// The same matmul, with the times of arXiv 2512.13282, tuned with the vendor's
/// compiler.
pub(super) const GEMM_BF16_TUNED: KernelEntry = gemm("gemm_bf16_tuned");

/// The compiler's code with `c` in bf16, rounded after every call.
pub(super) const GEMM_BF16_LOW: KernelEntry = KernelEntry {
    operands: &[
        KernelOperand::reads("a", blocks_a),
        KernelOperand::reads("b", blocks_b),
        KernelOperand::new("c", Access::Update, DType::BF16, blocks_c),
    ],
    values: product_low,
    ..gemm("gemm_bf16_low")
};

/// The matmul in AIE2P's block floating point: 8 operands along `k` share an
/// exponent (bfp16ebs8).
pub(super) const GEMM_BFP16: KernelEntry = KernelEntry {
    values: |params, values| product(params, values, bfp16::bfp16_quantize),
    ..gemm("gemm_bfp16")
};

const fn gemm(name: &'static str) -> KernelEntry {
    KernelEntry {
        name,
        params: GEMM_PARAMS,
        operands: GEMM_OPERANDS,
        macs,
        cascade: CascadeUse::None,
        fault: blocks_fault,
        values: |params, values| product(params, values, |_| ()),
    }
}

const GEMM_OPERANDS: &[KernelOperand] = &[
    KernelOperand::reads("a", blocks_a),
    KernelOperand::reads("b", blocks_b),
    KernelOperand::new("c", Access::Update, DType::F32, blocks_c),
];
const GEMM_PARAMS: &[Param] = &[Param::size("m"), Param::size("n"), Param::size("k")];

/// `c += a · bᵀ` in int8 with int32 sums, which wrap like the accumulators.
pub(super) const GEMM_INT8: KernelEntry = KernelEntry {
    operands: &[
        KernelOperand::new("a", Access::Read, DType::I8, blocks_a),
        KernelOperand::new("b", Access::Read, DType::I8, blocks_b),
        KernelOperand::new("c", Access::Update, DType::I32, blocks_c),
    ],
    values: product_int8,
    ..gemm("gemm_int8")
};

/// `c = saturate(c + a · bᵀ)` with `c` in int8: a call sums in int32, then the store saturates.
pub(super) const GEMM_INT8_I8: KernelEntry = KernelEntry {
    operands: &[
        KernelOperand::new("a", Access::Read, DType::I8, blocks_a),
        KernelOperand::new("b", Access::Read, DType::I8, blocks_b),
        KernelOperand::new("c", Access::Update, DType::I8, blocks_c),
    ],
    values: product_int8_saturating::<1>,
    ..gemm("gemm_int8_i8")
};

/// The same with `c` in int16: two elements of one byte each, as no format of tensors has 16-bit integers.
pub(super) const GEMM_INT8_I16: KernelEntry = KernelEntry {
    operands: &[
        KernelOperand::new("a", Access::Read, DType::I8, blocks_a),
        KernelOperand::new("b", Access::Read, DType::I8, blocks_b),
        KernelOperand::new("c", Access::Update, DType::I8, |p| {
            let bytes = Axis { extent: 2, rows: 0, columns: 0 };
            blocks_c(p).into_iter().chain([bytes]).collect()
        }),
    ],
    values: product_int8_saturating::<2>,
    ..gemm("gemm_int8_i16")
};

/// `y[i] = Σ a[i, j] · x[j]`: 64 lanes each sum every 64th column in ascending
/// order; then a tree reduction adds the lanes (`mv.cc`).
pub(super) const GEMV_BF16: KernelEntry = KernelEntry {
    name: "gemv_bf16",
    params: &[Param::size("rows"), Param::size("k")],
    operands: &[
        KernelOperand::reads("w", |p| matrix(p[0], p[1])),
        KernelOperand::reads("x", |p| vector(p[1])),
        KernelOperand::writes("y", |p| vector(p[0])),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: |_| None,
    values: vector_product,
};

/// Adds the products of a part of the terms to f32 sums, for rows that are too long for
/// a core: `sums += w · x`. The sum of a part is that of `gemv_bf16`.
pub(super) const GEMV_BF16_PART: KernelEntry = KernelEntry {
    name: "gemv_bf16_part",
    operands: &[
        KernelOperand::reads("w", |p| matrix(p[0], p[1])),
        KernelOperand::reads("x", |p| vector(p[1])),
        KernelOperand::new("sums", Access::Update, DType::F32, |p| vector(p[0])),
    ],
    values: |params, values| {
        let (a, x) = (values.bf16(0), values.bf16(1));
        let mut sums = values.updated(0, DType::F32);
        for (sum, row) in sums.iter_mut().zip(a.chunks_exact(params[1] as usize)) {
            *sum += lane_sum(row, &x);
        }
        values.store(0, DType::F32, &sums);
    },
    ..GEMV_BF16
};

fn macs(params: &[u32]) -> u64 {
    params.iter().map(|&size| u64::from(size)).product()
}

fn blocks_fault(params: &[u32]) -> Option<String> {
    let units = [("m", BLOCK_ROWS), ("n", BLOCK_SIDE), ("k", BLOCK_SIDE)];
    units.iter().zip(params).find_map(|((name, unit), &size)| whole(name, size, *unit))
}

fn blocks_a(params: &[u32]) -> Vec<Axis> {
    blocks(params[0], params[2], (BLOCK_ROWS, BLOCK_SIDE))
}

fn blocks_b(params: &[u32]) -> Vec<Axis> {
    blocks(params[1], params[2], (BLOCK_SIDE, BLOCK_SIDE))
}

fn blocks_c(params: &[u32]) -> Vec<Axis> {
    blocks(params[0], params[1], (BLOCK_ROWS, BLOCK_SIDE))
}

/// Computes a matmul with f32 sums.
///
/// The order of each sum does not depend on the blocks, so the loops are chosen
/// for speed: four rows of `a` by eight of `b`, one block of `c`.
fn product(params: &[u32], values: &mut KernelValues<'_>, convert: fn(&mut [f32])) {
    let (a, panels) = factors(params, values, convert);
    let [_, n, k] = [params[0] as usize, params[1] as usize, params[2] as usize];
    for (rows, c) in a.chunks_exact(4 * k).zip(values.writes[0].chunks_exact_mut(16 * n)) {
        for (panel, c) in panels.chunks_exact(8 * k).zip(c.as_chunks_mut::<128>().0) {
            let mut sums = [0.0; 32];
            for (sum, bytes) in sums.iter_mut().zip(c.as_chunks::<4>().0) {
                *sum = f32::from_le_bytes(*bytes);
            }
            block(rows, panel, &mut sums);
            for (sum, bytes) in sums.iter().zip(c.as_chunks_mut::<4>().0) {
                *bytes = sum.to_le_bytes();
            }
        }
    }
}

/// Computes a matmul whose sums are rounded to bf16 after the call.
fn product_low(params: &[u32], values: &mut KernelValues<'_>) {
    let (a, panels) = factors(params, values, |_| ());
    let [_, n, k] = [params[0] as usize, params[1] as usize, params[2] as usize];
    let mut c = values.updated(0, DType::BF16);
    for (rows, c) in a.chunks_exact(4 * k).zip(c.chunks_exact_mut(4 * n)) {
        for (panel, c) in panels.chunks_exact(8 * k).zip(c.as_chunks_mut().0) {
            block(rows, panel, c);
        }
    }
    values.store(0, DType::BF16, &c);
}

/// Both factors, converted eight values at a time as the matrix unit does: `a`
/// in its blocks, `b` in panels.
fn factors(params: &[u32], values: &KernelValues<'_>, convert: fn(&mut [f32])) -> (Vec<f32>, Vec<f32>) {
    let (mut a, mut b) = (values.bf16(0), values.bf16(1));
    a.chunks_exact_mut(8).for_each(convert);
    b.chunks_exact_mut(8).for_each(convert);
    let panels = panels_of(&b, params[2] as usize);
    (a, panels)
}

/// Updates one block of `c`, `[4][8]`, with a row of blocks of `a`,
/// `[k/8][4][8]`, and a panel of `b`, `[k][8]`.
fn block(a: &[f32], panel: &[f32], c: &mut [f32; 32]) {
    let mut sums: [[f32; 8]; 4] =
        std::array::from_fn(|row| std::array::from_fn(|column| c[row * 8 + column]));
    for (a, panel) in a.as_chunks::<32>().0.iter().zip(panel.as_chunks::<64>().0) {
        for (step, b) in panel.as_chunks::<8>().0.iter().enumerate() {
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = a[row * 8 + step];
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
    }
    for (c, sums) in c.chunks_exact_mut(8).zip(&sums) {
        c.copy_from_slice(sums);
    }
}

/// Converts `b` from blocks `[n/8][k/8][8 rows][8]` to panels `[n/8][k][8
/// rows]`.
fn panels_of(blocks: &[f32], k: usize) -> Vec<f32> {
    let mut panels = vec![0.0; blocks.len()];
    for (block, panel) in blocks.chunks_exact(64).zip(panels.chunks_exact_mut(64)) {
        for (at, &value) in block.iter().enumerate() {
            panel[at % 8 * 8 + at / 8] = value;
        }
    }
    debug_assert_eq!(panels.len() % (8 * k), 0, "whole panels");
    panels
}

fn product_int8(params: &[u32], values: &mut KernelValues<'_>) {
    sum_int8(params, values, |bytes: &mut [u8; 4], sum| {
        *bytes = i32::from_le_bytes(*bytes).wrapping_add(sum).to_le_bytes();
    });
}

/// As [`product_int8`], with results of `BYTES` bytes that saturate.
fn product_int8_saturating<const BYTES: usize>(params: &[u32], values: &mut KernelValues<'_>) {
    let max = (1i64 << (8 * BYTES - 1)) - 1;
    sum_int8(params, values, |bytes: &mut [u8; BYTES], sum| {
        let mut wide = [if bytes[BYTES - 1] < 0x80 { 0 } else { 0xff }; 8];
        wide[..BYTES].copy_from_slice(bytes);
        let total = (i64::from_le_bytes(wide) + i64::from(sum)).clamp(-max - 1, max);
        bytes.copy_from_slice(&total.to_le_bytes()[..BYTES]);
    });
}

/// Passes each element of `c` and the sum of its products to `add`.
fn sum_int8<const BYTES: usize>(
    params: &[u32],
    values: &mut KernelValues<'_>,
    add: impl Fn(&mut [u8; BYTES], i32),
) {
    let [m, n, k] = [params[0] as usize, params[1] as usize, params[2] as usize];
    let (a, b) = (values.reads[0], values.reads[1]);
    let at = |columns: usize, rows: usize, row: usize, column: usize| {
        ((row / rows * (columns / 8) + column / 8) * rows + row % rows) * 8 + column % 8
    };
    let cells = values.writes[0].as_chunks_mut::<BYTES>().0;
    for row in 0..m {
        for column in 0..n {
            let mut sum = 0i32;
            for step in 0..k {
                let a = a[at(k, 4, row, step)].cast_signed();
                let b = b[at(k, 8, column, step)].cast_signed();
                sum = sum.wrapping_add(i32::from(a) * i32::from(b));
            }
            add(&mut cells[at(n, 4, row, column)], sum);
        }
    }
}

fn vector_product(params: &[u32], values: &mut KernelValues<'_>) {
    let k = params[1] as usize;
    let (a, x) = (values.bf16(0), values.bf16(1));
    let y: Vec<f32> = a.chunks_exact(k).map(|row| lane_sum(row, &x)).collect();
    values.store(0, DType::BF16, &y);
}

/// A dot product in 64 lanes.
fn lane_sum(row: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; GEMV_LANES];
    for (row, x) in row.chunks(GEMV_LANES).zip(x.chunks(GEMV_LANES)) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(row).zip(x) {
            *lane += a * b;
        }
    }
    halve(&mut lanes)
}

/// The sum of the lanes by tree reduction: halves are added until one lane
/// remains.
pub(super) fn halve(lanes: &mut [f32]) -> f32 {
    let mut width = lanes.len();
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}
