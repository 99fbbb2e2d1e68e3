//! The code of matrix products: `mm_aie2p.cc` and `mv.cc` of mlir-air, and the kernels on Q4NX tiles of
//! `crates/npu/kernels/kernels.cc`.

use super::chain::ROW_OF_GEMV;
use super::function_code::{CONSTANT, CodePart, KernelFunction, ROUNDING, function};
use super::loop_schedule::{AIE2, LoopBody, VectorUnit};

/// Whether sums stay f32 between calls, or are converted from and to bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WideSums {
    Stored,
    Rounded,
}

/// Bytes of the f32 sums of a block of 16×16.
pub(super) const SUMS: u32 = 16 * 16 * 4;

/// Loops that begin in a call with the 64 rows of the tables: for each of its four rows of blocks, one over columns and
/// the first one over terms.
const LOOPS_OF_CALL: u32 = 8;

/// `matmul_vectorized_2x2_mmul`: a loop over rows of blocks, one over columns, and one over terms between the loads
/// and the stores of the sums.
pub(super) fn gemm(unit: VectorUnit, sums: WideSums) -> Vec<KernelFunction> {
    product(unit, sums, step_of_gemm(unit))
}

/// A product of block floating point: no value is converted.
pub(super) fn gemm_bfp16(unit: VectorUnit) -> Vec<KernelFunction> {
    product(unit, WideSums::Stored, multiply(8, 0, 4))
}

/// A product of int8 values: two blocks of 8×8 on each side, those of one transposed. AIE2 multiplies half as many in a cycle.
pub(super) fn gemm_int8(unit: VectorUnit) -> Vec<KernelFunction> {
    product(unit, WideSums::Stored, multiply(4 * unit.vectors(64), 4, 4 * unit.vectors(64)))
}

/// The code of a product, given one step of eight terms of a block of 16×16.
pub(super) fn product(unit: VectorUnit, sums: WideSums, step: LoopBody) -> Vec<KernelFunction> {
    let columns = vec![
        // Addresses of two blocks of each operand and of four blocks of sums.
        CodePart::Scalars(8),
        CodePart::Straight(loaded_sums(unit, sums)),
        CodePart::Loop(step),
        CodePart::Straight(stored_sums(unit, sums)),
    ];
    // Two events around the loops, and two addresses for each row of blocks.
    let rows = CodePart::OuterLoop(vec![CodePart::Scalars(2), CodePart::OuterLoop(columns)]);
    let product = function(3, vec![CodePart::Scalars(ROUNDING + 2), rows]);
    vec![KernelFunction { loops: LOOPS_OF_CALL, ..product }]
}

/// A step of eight terms of a block of 16×16.
///
/// On AIE2P, values become block floating point: those of one operand are widened as they are loaded, those of the
/// other are transposed and multiplied by one; so does `gemm-bfp16.ll`, a test of llvm-aie. On AIE2, the unit
/// multiplies blocks of 4×8 by 8×4.
pub(super) fn step_of_gemm(unit: VectorUnit) -> LoopBody {
    if unit == AIE2 {
        return multiply(2 * unit.vectors(16 * 8 * 2), 0, 16);
    }
    let mut body = LoopBody::new();
    let mut left = Vec::new();
    for _ in 0..2 {
        let halves = [body.load(), body.load()];
        left.push(body.narrow(halves[1]));
    }
    let mut right = Vec::new();
    for _ in 0..2 {
        let halves = [body.load(), body.load()];
        let turned = [body.shuffle(&halves), body.shuffle(&halves)];
        right.push(body.rounded_product(&turned));
    }
    for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        body.accumulate_product(&[left[a], right[b]]);
    }
    body
}

/// Loads, shuffles of the last loads, and products of all.
fn multiply(loads: u32, shuffles: u32, products: u32) -> LoopBody {
    let mut body = LoopBody::new();
    let mut value = body.load_vectors(loads);
    for _ in 0..shuffles {
        value = body.shuffle(&[value]);
    }
    (0..products).for_each(|_| body.accumulate_product(&[value]));
    body
}

fn loaded_sums(unit: VectorUnit, sums: WideSums) -> LoopBody {
    let mut body = LoopBody::new();
    let vectors = unit.vectors(SUMS);
    match sums {
        WideSums::Stored => {
            body.load_vectors(vectors);
        }
        WideSums::Rounded => {
            let halves: Vec<usize> = (0..vectors / 2).map(|_| body.load()).collect();
            for half in halves {
                body.shuffle(&[half]);
                body.shuffle(&[half]);
            }
        }
    }
    body
}

fn stored_sums(unit: VectorUnit, sums: WideSums) -> LoopBody {
    let mut body = LoopBody::new();
    let vectors = unit.vectors(SUMS);
    match sums {
        WideSums::Stored => body.store_constants(vectors),
        WideSums::Rounded => {
            let halves: Vec<usize> = (0..vectors / 2).map(|_| body.narrow_constant()).collect();
            halves.into_iter().for_each(|half| body.store(half));
        }
    }
    body
}

/// `mv.cc`: the function of a product, and the one that sets its results to zero before.
pub(super) fn gemv(unit: VectorUnit) -> Vec<KernelFunction> {
    let mut clear = LoopBody::new();
    clear.store_constants(1);
    let fill = vec![CodePart::Scalars(CONSTANT + 2), CodePart::Loop(clear), CodePart::Guard(0)];
    vec![rows_of_gemv(unit, 6), function(1, fill)]
}

/// The rows of a matrix, over a part of its columns.
pub(super) fn gemv_part(unit: VectorUnit) -> Vec<KernelFunction> {
    vec![rows_of_gemv(unit, 5)]
}

/// A step of 64 terms, whose number is an argument. AIE2P emulates the interface of AIE2, for which `mv.cc` is compiled:
/// its sums wait for products.
pub(super) fn step_of_gemv(unit: VectorUnit) -> LoopBody {
    let mut step = LoopBody::new().with_unknown_trips();
    let loads = step.load_vectors(2 * unit.vectors(64 * 2));
    for _ in 0..4 {
        match unit {
            AIE2 => step.accumulate_product(&[loads]),
            _ => {
                let product = step.product(&[loads]);
                step.sum(&[product]);
            }
        }
    }
    step
}

fn rows_of_gemv(unit: VectorUnit, arguments: u32) -> KernelFunction {
    let step = step_of_gemv(unit);
    // Sums of zeros behind a comparison, and the address and the store of the result.
    let row =
        vec![CodePart::Guard(4), CodePart::Loop(step), CodePart::Steps(ROW_OF_GEMV), CodePart::Scalars(2)];
    // The place of the results and their end, each a product by the size of a value and a sum; the end of the vector is
    // behind the comparison.
    function(
        arguments,
        vec![CodePart::Scalars(ROUNDING + 2 * 2), CodePart::Guard(2), CodePart::OuterLoop(row)],
    )
}

/// Two columns of 16 weights of a Q4NX tile in bf16: `two_columns`.
fn two_columns(body: &mut LoopBody) -> usize {
    let loads = [body.load(), body.load(), body.load()];
    let bytes = body.shuffle(&loads[..1]);
    let halves = [body.shuffle(&[bytes]), body.shuffle(&[bytes])];
    let weights = body.narrow(halves[1]);
    let [scales, minimums] = [body.shuffle(&loads[1..2]), body.shuffle(&loads[2..])];
    let scaled = body.product(&[weights, scales]);
    let sum = body.sum(&[scaled, minimums]);
    body.narrow(sum)
}

/// Whether a tile has minimums: eight vectors of them, and their lanes.
fn is_signed() -> [CodePart; 3] {
    let mut body = LoopBody::new();
    let value = body.load();
    body.shuffle(&[value]);
    [CodePart::Loop(body), CodePart::Scalars(3), CodePart::Guard(0)]
}

/// The same loop for tiles with minimums and for others.
fn for_both_signs(of: &[CodePart]) -> Vec<CodePart> {
    is_signed().into_iter().chain(of.iter().cloned()).chain(of.iter().cloned()).collect()
}

/// `gemv_q4nx`: two halves of 16 rows, and 128 pairs of columns in each.
pub(super) fn gemv_q4nx(unit: VectorUnit) -> Vec<KernelFunction> {
    let mut pair = LoopBody::new();
    let weights = two_columns(&mut pair);
    for _ in 0..2 {
        let loaded = pair.load();
        let operands = [pair.shuffle(&[weights]), pair.shuffle(&[loaded])];
        pair.accumulate_product(&operands);
    }
    let sums = unit.vectors(16 * 4);
    let (mut loads, mut stores) = (LoopBody::new(), LoopBody::new());
    loads.load_vectors(sums);
    stores.store_constants(sums);
    let half = vec![
        CodePart::Scalars(6),
        CodePart::Straight(loads),
        CodePart::Loop(pair),
        CodePart::Straight(stores),
    ];
    let tile = for_both_signs(&[CodePart::OuterLoop(half)]);
    let tiles = CodePart::OuterLoop([vec![CodePart::Scalars(4)], tile].concat());
    vec![function(
        5,
        vec![CodePart::Scalars(ROUNDING + 6), CodePart::OuterLoop(vec![CodePart::Scalars(2), tiles])],
    )]
}

/// `tile_block`: eight rows by eight columns, whose bytes are exchanged in three shuffles.
fn block_of_tile() -> (LoopBody, usize) {
    let mut body = LoopBody::new();
    let mut block = 0;
    for _ in 0..4 {
        let columns = two_columns(&mut body);
        block = body.shuffle(&[columns]);
    }
    for _ in 0..3 {
        block = body.shuffle(&[block]);
    }
    (body, block)
}

/// `dequant_q4nx`: groups, rows of blocks and columns, with eight rows stored apart.
pub(super) fn dequantize() -> Vec<KernelFunction> {
    let (mut body, block) = block_of_tile();
    for _ in 0..8 {
        let row = body.shuffle(&[block]);
        body.store(row);
    }
    blocks_of_tile(body, 3)
}

/// `unpack_q4nx`: rows of blocks and columns, with a block stored at once.
pub(super) fn unpack(unit: VectorUnit) -> Vec<KernelFunction> {
    let (mut body, block) = block_of_tile();
    (0..unit.vectors(8 * 8 * 2)).for_each(|_| body.store(block));
    blocks_of_tile(body, 2)
}

/// A loop over blocks inside others, for both signs.
fn blocks_of_tile(body: LoopBody, depth: u32) -> Vec<KernelFunction> {
    let mut nest = CodePart::Loop(body);
    for _ in 1..depth {
        nest = CodePart::OuterLoop(vec![CodePart::Scalars(4), nest]);
    }
    vec![function(4, [vec![CodePart::Scalars(ROUNDING + 6)], for_both_signs(&[nest])].concat())]
}
