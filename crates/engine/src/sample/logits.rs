//! Functions on a slice of logits, shared by several samplers.

use std::cmp::Ordering;

/// Returns the highest logit, or −∞ for an empty slice. Every step reads the whole
/// vocabulary for this, so 16 maxima are computed in parallel.
pub(super) fn highest(logits: &[f32]) -> f32 {
    let (rows, rest) = logits.as_chunks::<16>();
    let mut tops = [f32::NEG_INFINITY; 16];
    for row in rows {
        tops.iter_mut().zip(row).for_each(|(top, logit)| *top = if *logit > *top { *logit } else { *top });
    }
    tops.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Returns the index of the first logit for which `is` returns `true`. Runs of logits
/// are tested first, by a loop without an early exit, which the compiler vectorizes.
pub(super) fn first(logits: &[f32], is: impl Fn(f32) -> bool) -> Option<usize> {
    const RUN: usize = 256;
    let mut runs = logits.chunks(RUN);
    let found = runs.position(|run| run.iter().fold(false, |any, logit| any | is(*logit)))?;
    let start = found * RUN;
    logits[start..].iter().position(|logit| is(*logit)).map(|index| start + index)
}

/// Returns a logit's weight in the softmax, in which `highest` has weight 1.
///
/// Infinite logits are valid: tokens at +∞ share all probability, and −∞ has weight 0.
pub(super) fn weight(logit: f32, highest: f32) -> f64 {
    if logit == f32::NEG_INFINITY {
        0.0
    } else if logit == highest {
        1.0
    } else {
        (f64::from(logit) - f64::from(highest)).exp()
    }
}

/// Returns the tokens that are not ruled out, in order of id.
pub(super) fn candidates(logits: &[f32]) -> Vec<u32> {
    (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY).map(|(id, _)| id).collect()
}

/// Orders tokens by descending logit, and equal logits by ascending id.
pub(super) fn rank(logits: &[f32], a: u32, b: u32) -> Ordering {
    let (left, right) = (logits[a as usize], logits[b as usize]);
    right.partial_cmp(&left).expect("NaN was refused before, and no sampler produces it").then(a.cmp(&b))
}

/// Sets the logits of these tokens to −∞.
pub(super) fn rule_out(logits: &mut [f32], ids: &[u32]) {
    for id in ids {
        logits[*id as usize] = f32::NEG_INFINITY;
    }
}
