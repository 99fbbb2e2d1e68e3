//! The code of attention's functions in `attn_npu2.cc` of mlir-air, in the order in which a core calls them.

use super::chain::Chain;
use super::function_code::{CONSTANT, CodePart, KernelFunction, function};
use super::loop_schedule::{LoopBody, VectorUnit};
use super::product_code::{WideSums, product, step_of_gemm};

/// Lanes of most of its loops, in bf16.
const LANES: u32 = 32;

/// The maximum or the sum of the eight lanes of each of four rows: three halvings and a conversion.
const FOUR_ROWS: Chain = Chain { trips: 0, products: 0, sums: 4 * 4, functions: 0 };

/// `zero_fill_gp_bf16`, `zero_fill_sp_bf16`, `neg_inf_fill_up_bf16`.
pub(super) fn attend_clear(unit: VectorUnit) -> Vec<KernelFunction> {
    vec![fill(unit), fill(unit), fill(unit)]
}

/// Scores and their softmax: `zero_fill_g_bf16`, `matmul_a_b_bf16`, `apply_causal_mask`, and `fused_softmax` with the
/// seven functions that it calls.
pub(super) fn attend_scores(unit: VectorUnit) -> Vec<KernelFunction> {
    let softmax = [
        function(2, maximum_of_rows(unit)),
        function(2, maximum(unit)),
        function(2, exponentials(unit)),
        function(3, factor(unit)),
        KernelFunction { calls: 2, ..copies(unit) },
        function(2, sum_of_rows(unit)),
    ];
    let mut functions = vec![fill(unit), matmul(unit), function(3, mask(unit)), function(4, Vec::new())];
    functions.extend(softmax);
    functions
}

/// `mul_r_gp`, `matmul_g_b_bf16`, `accum_sp_r_s`, `vector_copy_32elems`.
pub(super) fn attend_values(unit: VectorUnit) -> Vec<KernelFunction> {
    vec![function(2, scaled_rows(unit, 0)), matmul(unit), function(3, scaled_sum(unit)), copies(unit)]
}

/// What `attn_npu2.py` calls after it has received sums.
pub(super) fn attend_merge(unit: VectorUnit) -> Vec<KernelFunction> {
    let twice = |arguments, parts| KernelFunction { calls: 2, ..function(arguments, parts) };
    vec![
        KernelFunction { calls: 2, ..copies(unit) },
        function(2, maximum(unit)),
        twice(3, factor(unit)),
        twice(2, scaled_rows(unit, 0)),
        function(2, sum_of_values(unit)),
        fill(unit),
        twice(3, scaled_sum(unit)),
    ]
}

/// `div_gp_sp`: the inverse of each sum, with which its row is multiplied.
pub(super) fn attend_store(unit: VectorUnit) -> Vec<KernelFunction> {
    vec![function(2, scaled_rows(unit, LANES))]
}

/// A vector of bf16 values of a loop.
fn load(unit: VectorUnit, body: &mut LoopBody) -> usize {
    body.load_vectors(unit.vectors(LANES * 2))
}

fn store(unit: VectorUnit, body: &mut LoopBody, value: usize) {
    (0..unit.vectors(LANES * 2)).for_each(|_| body.store(value));
}

fn fill(unit: VectorUnit) -> KernelFunction {
    function(1, vec![CodePart::Scalars(CONSTANT + 1), cleared(unit)])
}

/// A loop that sets vectors to a constant.
fn cleared(unit: VectorUnit) -> CodePart {
    let mut body = LoopBody::new();
    body.store_constants(unit.vectors(LANES * 2));
    CodePart::Loop(body)
}

/// `vector_copy_32elems`
fn copies(unit: VectorUnit) -> KernelFunction {
    let mut body = LoopBody::new();
    let value = load(unit, &mut body);
    store(unit, &mut body, value);
    function(3, vec![CodePart::Scalars(2), CodePart::Loop(body)])
}

fn matmul(unit: VectorUnit) -> KernelFunction {
    // Its loops are in the figures of scores and values, as attention of one row has few of them.
    KernelFunction { loops: 0, ..product(unit, WideSums::Rounded, step_of_gemm(unit)).swap_remove(0) }
}

/// Halves of rows of blocks: a loop over rows, one over halves, and one over columns with `ahead` before and `after` it.
fn half_blocks(ahead: Vec<CodePart>, body: LoopBody, after: Vec<CodePart>) -> Vec<CodePart> {
    let half = [ahead, vec![CodePart::Loop(body)], after].concat();
    let halves = CodePart::OuterLoop([vec![CodePart::Scalars(3)], half].concat());
    vec![CodePart::OuterLoop(vec![CodePart::Scalars(2), halves])]
}

/// Four rows' values, each in eight lanes of a vector.
fn values_of_rows() -> CodePart {
    let mut body = LoopBody::new();
    for _ in 0..4 {
        let value = body.load();
        let lanes = body.shuffle(&[value]);
        body.shuffle(&[lanes]);
    }
    CodePart::Straight(body)
}

/// Results of four rows, two bytes each: a store of less than a word loads it before.
fn stored_rows() -> CodePart {
    let mut body = LoopBody::new();
    for _ in 0..4 {
        let lane = body.shuffle(&[]);
        body.store(lane);
    }
    CodePart::Straight(body)
}

/// `max_g_bf16`
fn maximum_of_rows(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let value = load(unit, &mut body);
    body.shuffle(&[value]);
    half_blocks(vec![CodePart::Scalars(CONSTANT)], body, vec![CodePart::Steps(FOUR_ROWS), stored_rows()])
}

/// `maximum_up_u_bf16`
fn maximum(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let values = [load(unit, &mut body), load(unit, &mut body)];
    let larger = body.shuffle(&values);
    store(unit, &mut body, larger);
    vec![CodePart::Scalars(1), CodePart::Loop(body)]
}

/// The difference of two vectors of 16 lanes, no less than the lowest value, and its power of two.
fn power(body: &mut LoopBody, operands: &[usize]) -> usize {
    let difference = body.rounded_sum(operands);
    let clamped = body.shuffle(&[difference]);
    let scaled = body.product(&[clamped]);
    body.function_of_sum(scaled)
}

/// `exp_g_minus_u`: two powers of 16 lanes.
fn exponentials(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let value = load(unit, &mut body);
    let powers = [power(&mut body, &[value]), power(&mut body, &[value])];
    let both = body.shuffle(&powers);
    store(unit, &mut body, both);
    half_blocks(vec![CodePart::Scalars(2 * CONSTANT), values_of_rows()], body, Vec::new())
}

/// `exp_up_minus_u`
fn factor(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let values = [load(unit, &mut body), load(unit, &mut body)];
    let factor = power(&mut body, &values);
    store(unit, &mut body, factor);
    vec![CodePart::Scalars(2 * CONSTANT + 1), CodePart::Loop(body)]
}

/// `sum_g`
fn sum_of_rows(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let value = load(unit, &mut body);
    body.accumulate(value);
    half_blocks(vec![CodePart::Scalars(CONSTANT)], body, vec![CodePart::Steps(FOUR_ROWS), stored_rows()])
}

/// `mul_r_gp`, and `div_gp_sp` with the inverses of `inverses` lanes before, one after the other.
fn scaled_rows(unit: VectorUnit, inverses: u32) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let value = load(unit, &mut body);
    let scaled = body.rounded_product(&[value]);
    store(unit, &mut body, scaled);
    let inverses = CodePart::Steps(Chain { trips: 0, products: 0, sums: 0, functions: inverses });
    half_blocks(vec![values_of_rows(), inverses], body, Vec::new())
}

/// `accum_sp_r_s`
fn scaled_sum(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let values = [load(unit, &mut body), load(unit, &mut body), load(unit, &mut body)];
    let product = body.product(&values[..2]);
    let sum = body.sum(&[product, values[2]]);
    let rounded = body.narrow(sum);
    store(unit, &mut body, rounded);
    vec![CodePart::Scalars(1), CodePart::Loop(body)]
}

/// `add_gp_g`
fn sum_of_values(unit: VectorUnit) -> Vec<CodePart> {
    let mut body = LoopBody::new();
    let values = [load(unit, &mut body), load(unit, &mut body)];
    let sum = body.rounded_sum(&values);
    store(unit, &mut body, sum);
    vec![CodePart::Scalars(1), CodePart::Loop(body)]
}

/// `apply_causal_mask`: a fill above the diagonal, nothing below it, and rows of eight columns on it, with four cases, of
/// which one compares eight columns.
fn mask(unit: VectorUnit) -> Vec<CodePart> {
    let mut read = LoopBody::new();
    let row = read.load();
    let selected = read.shuffle(&[row]);
    read.store(selected);
    let mut columns = vec![CodePart::Scalars(8), CodePart::Straight(read), CodePart::Scalars(3 * 8)];
    columns.extend([0; 3].map(CodePart::Guard));
    let rows = CodePart::OuterLoop(vec![CodePart::Scalars(4), CodePart::OuterLoop(columns)]);
    let case = || CodePart::Guard(0);
    vec![CodePart::Scalars(2 * CONSTANT), case(), cleared(unit), case(), rows]
}
