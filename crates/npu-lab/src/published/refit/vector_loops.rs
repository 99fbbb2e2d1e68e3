//! The loops of kernels on rows and elements: their instructions are counted in the public sources of mlir-air,
//! at the commit of the tables, and their cycles follow from [`LoopBody`].
//!
//! A value that is stored and loaded again in an iteration stays in its register, as does an accumulator that a loop
//! loads and stores: LLVM forwards the first and promotes the second, as buffers of a core are distinct globals.

use super::loop_schedule::{AIE2, LoopBody, VectorUnit};

/// The cycles of an iteration of a figure's loop; none for other figures.
pub(super) fn loop_cycles(unit: VectorUnit, figure: &str) -> Option<f64> {
    let (entry, loop_name) = figure.split_once('.')?;
    let is_over_vectors = matches!(loop_name, "vector" | "head");
    let bodies = vector_loops(unit, entry).filter(|_| is_over_vectors)?;
    Some(bodies.iter().map(|body| f64::from(body.cycles(unit))).sum())
}

/// The loops over vectors of an entry, in their order. Cores of AIE2 have no instruction for a hyperbolic tangent.
pub(super) fn vector_loops(unit: VectorUnit, entry: &str) -> Option<Vec<LoopBody>> {
    let bodies = match entry {
        "add" => vec![add()],
        "rope_halves" | "rope_neighbours" => vec![rotate()],
        "silu_mul" | "gelu" | "gelu_mul" if unit == AIE2 => return None,
        "silu_mul" => vec![silu_mul()],
        "gelu" => vec![gelu(false)],
        "gelu_mul" => vec![gelu(true)],
        "rms_norm" => vec![sum_of_squares(false), scale_by_weights()],
        "layer_norm" => vec![sum_of_values(), sum_of_squares(true), scale_and_shift()],
        "scale" | "attend_store" => vec![scale()],
        "store_bf16" => vec![store_rounded(unit)],
        "zero_f32" | "attend_clear" => vec![clear(unit)],
        "copy" => vec![copy(unit)],
        _ => return None,
    };
    Some(bodies)
}

/// `eltwise_add/eltwise_add.py`
fn add() -> LoopBody {
    let mut body = LoopBody::new();
    let operands = [body.load(), body.load()];
    let sum = body.rounded_sum(&operands);
    body.store(sum);
    body
}

/// `rope_halfsplit/rope_halfsplit.cc`: a pair of vectors; the size of a head is an argument.
fn rotate() -> LoopBody {
    let mut body = LoopBody::new().with_unknown_trips();
    let [first, second, cosine, sine] = [body.load(), body.load(), body.load(), body.load()];
    for factors in [[cosine, sine], [sine, cosine]] {
        let products = [body.product(&[first, factors[0]]), body.product(&[second, factors[1]])];
        let sum = body.sum(&products);
        let rounded = body.narrow(sum);
        body.store(rounded);
    }
    body
}

/// `silu_and_mul/silu_and_mul.cc`: the hyperbolic tangent of half of the gate, and two factors.
fn silu_mul() -> LoopBody {
    let mut body = LoopBody::new();
    let [gate, up] = [body.load(), body.load()];
    let half = body.rounded_product(&[gate]);
    let tangent = body.function(half);
    let above = body.rounded_sum(&[tangent]);
    let sigmoid = body.rounded_product(&[above]);
    let silu = body.rounded_product(&[gate, sigmoid]);
    let result = body.rounded_product(&[silu, up]);
    body.store(result);
    body
}

/// `gelu` of `python/air/api/ops.py`, whose operations are rounded one by one; and another factor, as of an operand.
fn gelu(has_factor: bool) -> LoopBody {
    let mut body = LoopBody::new();
    let value = body.load();
    let factor = has_factor.then(|| body.load());
    let square = body.rounded_product(&[value, value]);
    let cube = body.rounded_product(&[square, value]);
    let share = body.rounded_product(&[cube]);
    let inner = body.rounded_sum(&[value, share]);
    let scaled = body.rounded_product(&[inner]);
    let tangent = body.function(scaled);
    let above = body.rounded_sum(&[tangent]);
    let half = body.rounded_product(&[value]);
    let mut result = body.rounded_product(&[half, above]);
    if let Some(factor) = factor {
        result = body.rounded_product(&[result, factor]);
    }
    body.store(result);
    body
}

/// The first loop of `weighted_rms_norm/weighted_rms_norm.py`, or the second of `layer_norm/layer_norm.py`, which
/// squares distances from the mean. Squares are rounded and stored, the sum stays f32.
fn sum_of_squares(of_distances: bool) -> LoopBody {
    let mut body = LoopBody::new();
    let mut value = body.load();
    if of_distances {
        value = body.rounded_sum(&[value]);
    }
    let square = body.rounded_product(&[value, value]);
    body.store(square);
    body.accumulate(square);
    body
}

/// The last loop of `weighted_rms_norm/weighted_rms_norm.py`.
fn scale_by_weights() -> LoopBody {
    let mut body = LoopBody::new();
    let [value, weight] = [body.load(), body.load()];
    let scaled = body.rounded_product(&[value]);
    let result = body.rounded_product(&[scaled, weight]);
    body.store(result);
    body
}

/// The first loop of `layer_norm/layer_norm.py`.
fn sum_of_values() -> LoopBody {
    let mut body = LoopBody::new();
    let value = body.load();
    body.accumulate(value);
    body
}

/// The last loop of `layer_norm/layer_norm.py`.
fn scale_and_shift() -> LoopBody {
    let mut body = LoopBody::new();
    let [value, weight, bias] = [body.load(), body.load(), body.load()];
    let distance = body.rounded_sum(&[value]);
    let scaled = body.rounded_product(&[distance]);
    let weighted = body.rounded_product(&[scaled, weight]);
    body.store(weighted);
    let result = body.rounded_sum(&[weighted, bias]);
    body.store(result);
    body
}

/// A factor for all values, as in `div_gp_sp` of `attn_npu2.cc`.
fn scale() -> LoopBody {
    let mut body = LoopBody::new();
    let value = body.load();
    let result = body.rounded_product(&[value]);
    body.store(result);
    body
}

/// 16 f32 values become bf16.
fn store_rounded(unit: VectorUnit) -> LoopBody {
    let mut body = LoopBody::new();
    let value = body.load_vectors(unit.vectors(16 * 4));
    let rounded = body.narrow(value);
    body.store(rounded);
    body
}

/// 16 f32 values become zeros, which a register has.
fn clear(unit: VectorUnit) -> LoopBody {
    let mut body = LoopBody::new();
    body.store_constants(unit.vectors(16 * 4));
    body
}

/// 32 bf16 values, as in `copy_tile` of `attn_npu2.cc`.
fn copy(unit: VectorUnit) -> LoopBody {
    let mut body = LoopBody::new();
    let values: Vec<usize> = (0..unit.vectors(32 * 2)).map(|_| body.load()).collect();
    values.into_iter().for_each(|value| body.store(value));
    body
}

#[cfg(test)]
mod tests {
    use super::super::figures::{CORE, FigureValues};
    use super::super::loop_schedule::AIE2P;
    use super::*;

    /// By hand, from latencies: a load 7, a product 6, a sum 6, a conversion 2, a function 2. The first instruction is in
    /// cycle 0, and the store takes one.
    #[test]
    fn cycles_are_those_counted_by_hand() {
        let of = |figure| loop_cycles(AIE2P, figure).unwrap();
        // The second operand is widened a cycle later.
        assert_eq!(of("add.vector"), 7.0 + 1.0 + 6.0 + 2.0 + 1.0);
        assert_eq!(of("scale.vector"), 7.0 + 8.0 + 1.0);
        assert_eq!(of("store_bf16.vector"), 7.0 + 2.0 + 1.0);
        assert_eq!(of("silu_mul.vector"), 7.0 + 8.0 + 4.0 + 8.0 + 3.0 * 8.0 + 1.0);
        // The second loads arrive in cycle 8; the fourth product starts 3 cycles later, its sum 3 after that, and the
        // conversion of the other sum takes the slot for no longer.
        assert_eq!(of("rope_halves.head"), 8.0 + 4.0 + 3.0 + 6.0 + 2.0 + 1.0);
        assert_eq!(of("gelu_mul.vector") - of("gelu.vector"), 8.0, "one more product");
        // Eight stages are more than LLVM accepts.
        assert_eq!(of("copy.vector"), 7.0 + 1.0);
        assert_eq!(of("zero_f32.vector"), 1.0);
        assert_eq!(loop_cycles(AIE2P, "attend.scores"), None);
    }

    /// A vector of 16 f32 values takes two loads or stores there, and accumulators are read a cycle earlier.
    #[test]
    fn cycles_of_aie2_are_those_counted_by_hand() {
        let of = |figure| loop_cycles(AIE2, figure);
        assert_eq!(of("add.vector"), Some(7.0 + 1.0 + 6.0 + 2.0 + 1.0));
        assert_eq!(of("rope_halves.head"), Some(8.0 + 4.0 + 4.0 + 6.0 + 2.0 + 1.0));
        assert_eq!(of("zero_f32.vector"), Some(2.0));
        assert_eq!(of("copy.vector"), Some(7.0 + 2.0));
        assert_eq!(of("silu_mul.vector"), None);
    }

    /// Figures of loops that are parts of other kernels are those of these kernels.
    #[test]
    fn parts_of_kernels_have_the_cycles_of_their_loops() {
        let figures = FigureValues::committed().unwrap();
        for (part, whole) in [
            ("gemv_bf16_part.row", "gemv_bf16.row"),
            ("gemv_bf16_part.step", "gemv_bf16.step"),
            ("attend_scores.scores", "attend.scores"),
            ("attend_scores.softmax", "attend.softmax"),
            ("attend_values.values", "attend.values"),
        ] {
            assert_eq!(figures.of(CORE, part), figures.of(CORE, whole), "{part}");
        }
    }
}
