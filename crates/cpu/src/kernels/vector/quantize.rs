//! Rows of activations as small integers, four groups at a time.
//!
//! ```text
//! largest = max |x| as integers     lane by lane, then four groups' lanes together
//! left    = Σ (x · i − round(x · i))²   for each number of levels i · largest
//! codes   = x · (levels / largest)  converted to integers, to even where two are as near
//! sums    = Σ codes                 lane by lane, then four groups' lanes together
//! ```
//! The operations are those of `portable::quantize`, which also quantizes the groups
//! that are left over and those without a scale. Bytes: 4 read and 1.25 written a
//! value. The results of four groups take 5 divisions.

use super::quads::{self, Quads};
use super::{Isa, QUAD, VectorKernel, WIDE, Wide};
use crate::kernels::packed::QUANT_GROUP;
use crate::kernels::portable;

/// Values of four groups.
const VALUES: usize = QUAD * QUANT_GROUP;

/// Quantizes a row.
pub(super) fn quantize<I: Isa>(isa: I, x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    isa.enter(Quantize { x, codes, scales, sums });
}

struct Quantize<'a> {
    pub x: &'a [f32],
    pub codes: &'a mut [i8],
    pub scales: &'a mut [f32],
    pub sums: &'a mut [i32],
}

impl<I: Isa> VectorKernel<I> for Quantize<'_> {
    #[inline(always)]
    fn run(self, isa: I) {
        let Quantize { x, codes, scales, sums } = self;
        portable::quantize::assert_fits(x, codes, scales, sums);
        let (x, x_rest) = x.as_chunks::<VALUES>();
        let (codes, codes_rest) = codes.as_chunks_mut::<VALUES>();
        let (scales, scales_rest) = scales.as_chunks_mut::<QUAD>();
        let (sums, sums_rest) = sums.as_chunks_mut::<QUAD>();
        for (((x, codes), scales), sums) in x.iter().zip(codes).zip(scales).zip(sums) {
            if !quad(isa.wide(), x, codes, scales, sums) {
                portable::quantize::quantize(x, codes, scales, sums);
            }
        }
        portable::quantize::quantize(x_rest, codes_rest, scales_rest, sums_rest);
    }
}

/// Quantizes four groups, unless one of them has no scale.
#[inline(always)]
fn quad<V: Wide>(
    v: V,
    x: &[f32; VALUES],
    codes: &mut [i8; VALUES],
    scales: &mut [f32; QUAD],
    sums: &mut [i32; QUAD],
) -> bool {
    let groups = x.as_chunks::<WIDE>().0.as_chunks::<2>().0;
    let mut largest = [v.zero_quad(); QUAD];
    for (largest, [a, b]) in largest.iter_mut().zip(groups) {
        *largest = v.fold_max(v.max_integers(v.magnitude(v.load(a)), v.magnitude(v.load(b))));
    }
    let found = quads::scales(v, quads::largest_lanes(v, largest), groups);
    let Some((found, inverses)) = found else { return false };
    v.write_quad(found, scales);
    let mut totals = [v.zero_quad(); QUAD];
    let pairs = groups.as_chunks::<2>().0.iter().zip(inverses.as_chunks::<2>().0);
    let pairs = pairs.zip(totals.as_chunks_mut::<2>().0).zip(codes.as_chunks_mut().0);
    for (((groups, inverses), totals), codes) in pairs {
        let first = rounded(v, &groups[0], v.broadcast(inverses[0]));
        let second = rounded(v, &groups[1], v.broadcast(inverses[1]));
        v.write_bytes([v.narrow(first[0], first[1]), v.narrow(second[0], second[1])], codes);
        totals[0] = v.fold_integers(v.add_integers(first[0], first[1]));
        totals[1] = v.fold_integers(v.add_integers(second[0], second[1]));
    }
    v.write_integer_quad(quads::sum_lanes(v, totals), sums);
    true
}

/// The integers next to the values of a group times `inverse`.
#[inline(always)]
fn rounded<V: Wide>(v: V, [a, b]: &[[f32; WIDE]; 2], inverse: V::Floats) -> [V::Integers; 2] {
    [v.to_integers(v.mul(v.load(a), inverse)), v.to_integers(v.mul(v.load(b), inverse))]
}
