//! The random numbers, and the draw of a token.

use super::{highest, weight};

/// The increment and the mixer of SplitMix64: Steele, Lea & Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014; the multipliers
/// are Stafford's variant 13.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Number `n` of the stream of `seed`, uniform in [0, 1) with 53 bits.
///
/// It depends on nothing else, so neither the size of chunks nor another
/// request can shift a stream. The seed is mixed first, because the streams of
/// seeds that differ by a multiple of the increment would overlap.
pub fn uniform(seed: u64, n: u64) -> f64 {
    let start = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(start.wrapping_add(GOLDEN.wrapping_mul(n.wrapping_add(1))));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The token at which the probabilities, added up in order of id, exceed `u`
/// in [0, 1); `None` when every token is ruled out.
pub fn draw(logits: &[f32], u: f64) -> Option<u32> {
    let highest = highest(logits);
    let weights = || (0..).zip(logits).map(|(id, logit)| (id, weight(*logit, highest)));
    let mut left = u * weights().map(|(_, weight)| weight).sum::<f64>();
    let mut last = None;
    for (id, weight) in weights().filter(|(_, weight)| *weight > 0.0) {
        if left < weight {
            return Some(id);
        }
        left -= weight;
        last = Some(id);
    }
    // The differences may round so that a little is left after the last token.
    last
}
