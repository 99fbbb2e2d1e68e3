//! What quantizing does to four groups at once: vectors of four numbers, one for
//! each group.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::{IntegerQuad, QUAD, Quad, Vectors};
use crate::kernels::portable::quantize::LEVELS;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::NeonQuads as Quads;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::SseQuads as Quads;

/// Joins the four lanes of each vector by `join`: 0 with 2, 1 with 3, then both,
/// the order in which the portable kernel adds numbers.
#[inline(always)]
fn join_lanes<V: Vectors>(
    v: V,
    [a, b, c, d]: [IntegerQuad; QUAD],
    join: impl Fn(IntegerQuad, IntegerQuad) -> IntegerQuad,
) -> IntegerQuad {
    let ([ab_low, ab_high], [cd_low, cd_high]) = (v.mix_lanes(a, b), v.mix_lanes(c, d));
    let [low, high] = v.mix_pairs(join(ab_low, ab_high), join(cd_low, cd_high));
    join(low, high)
}

/// The largest lane of each of four vectors.
#[inline(always)]
pub(super) fn largest_lanes<V: Vectors>(v: V, vectors: [IntegerQuad; QUAD]) -> IntegerQuad {
    join_lanes(v, vectors, |a, b| v.max_quads(a, b))
}

/// The sum of each of four vectors' lanes.
#[inline(always)]
pub(super) fn sum_lanes<V: Vectors>(v: V, vectors: [IntegerQuad; QUAD]) -> IntegerQuad {
    join_lanes(v, vectors, |a, b| v.add_integer_quads(a, b))
}

/// The sum of each of four vectors' lanes, which are floats.
#[inline(always)]
pub(super) fn sum_float_lanes<V: Vectors>(v: V, [a, b, c, d]: [Quad; QUAD]) -> Quad {
    let bits = [v.quad_bits(a), v.quad_bits(b), v.quad_bits(c), v.quad_bits(d)];
    let add = |a, b| v.quad_bits(v.add_quads(v.quad_floats(a), v.quad_floats(b)));
    v.quad_floats(join_lanes(v, bits, add))
}

/// The scales of four groups, whose largest values are given as the bits of
/// numbers without a sign, and what their values are multiplied by, each in all
/// lanes of a vector; nothing if a group cannot be quantized.
#[inline(always)]
pub(super) fn scales<V: Vectors>(
    v: V,
    largest: IntegerQuad,
    groups: &[[V::Lanes; 2]],
) -> Option<(Quad, [Quad; QUAD])> {
    let largest = v.quad_floats(largest);
    if !v.have_scales(largest) {
        return None;
    }
    let (mut best, mut inverses, mut least) = (v.quad(0.0), v.quad(0.0), v.quad(f32::INFINITY));
    for (levels, weight) in LEVELS {
        let levels = v.quad(levels);
        let these = v.div_quads(levels, largest);
        let squares = v.mul_quads(squares_left(v, groups, v.spread(these)), v.quad(weight));
        let less = v.less_quads(squares, least);
        best = v.select_quads(levels, best, less);
        inverses = v.select_quads(these, inverses, less);
        least = v.select_quads(squares, least, less);
    }
    Some((v.div_quads(largest, best), v.spread(inverses)))
}

/// The sum of the squares that rounding leaves of each group, once it is multiplied
/// by its number.
#[inline(always)]
fn squares_left<V: Vectors>(v: V, groups: &[[V::Lanes; 2]], inverses: [Quad; QUAD]) -> Quad {
    let mut quarters = [v.quad(0.0); QUAD];
    for ((quarter, [a, b]), inverse) in quarters.iter_mut().zip(groups).zip(inverses) {
        let inverse = v.broadcast(inverse);
        let a = v.rounding(v.mul(v.load(a), inverse));
        let b = v.rounding(v.mul(v.load(b), inverse));
        *quarter = v.fold(v.add(v.mul(a, a), v.mul(b, b)));
    }
    sum_float_lanes(v, quarters)
}
