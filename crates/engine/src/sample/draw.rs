//! Random numbers, and the draw of a token.

use girih_tensor::random::{INCREMENT, mix};

use super::logits::{highest, weight};

/// Returns number `n` of the stream of `seed`, uniform in [0, 1) with 53 bits.
///
/// It depends on nothing else, so neither chunk sizes nor other requests shift a
/// stream. The seed is mixed first, because streams of seeds that differ by a multiple
/// of the increment would overlap.
pub fn uniform(seed: u64, n: u64) -> f64 {
    let start = mix(seed.wrapping_add(INCREMENT));
    let bits = mix(start.wrapping_add(INCREMENT.wrapping_mul(n.wrapping_add(1))));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the first token, in order of id, at which the cumulative probability exceeds
/// `u` in [0, 1); `None` if every token is ruled out.
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
    // Rounding may leave a small remainder after the last token.
    last
}
