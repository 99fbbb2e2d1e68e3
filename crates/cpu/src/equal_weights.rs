//! Which packed weights have the same bytes as an earlier one, so that memory and files have them once.
//!
//! A model of doubled layers has such weights, and one whose head is a copy of its table. Candidates are found by a digest of
//! some of their bytes, so that a model without equal weights pays for a sample only; then all bytes are compared.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

/// The pieces of a sample, and the bytes of each.
const SAMPLES: usize = 16;
const SAMPLE_BYTES: usize = 64;

/// The weights of one sample that a weight is compared with. Those of a model differ at once, or are equal.
const COMPARED: usize = 4;

/// What becomes of packed weights that are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EqualWeights {
    /// Memory has them once.
    #[default]
    Share,
    /// Each has memory of its own, except weights mapped from a file that holds them once: the slow twin.
    Keep,
}

/// For each weight the index of the first one that it equals, which is its own if there is none. `may_share` is whether two
/// weights of equal bytes may have them in common.
pub(crate) fn first_equal(weights: &[&[u8]], may_share: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut samples: HashMap<(usize, u64), Vec<usize>> = HashMap::new();
    let first = weights.iter().enumerate().map(|(index, bytes)| {
        let firsts = samples.entry((bytes.len(), sample(bytes))).or_default();
        let is_equal = |first: &usize| may_share(*first, index) && weights[*first] == *bytes;
        match firsts.iter().take(COMPARED).copied().find(is_equal) {
            Some(first) if !bytes.is_empty() => first,
            _ => {
                firsts.push(index);
                index
            }
        }
    });
    first.collect()
}

/// For each weight the index of the first one in the same memory, which is its own if there is none.
pub(crate) fn first_shared(weights: &[&[u8]]) -> Vec<usize> {
    let mut firsts = HashMap::new();
    let first = weights.iter().enumerate().map(|(index, bytes)| match bytes.is_empty() {
        true => index,
        false => *firsts.entry(bytes.as_ptr_range()).or_insert(index),
    });
    first.collect()
}

/// A digest of some of the bytes.
fn sample(bytes: &[u8]) -> u64 {
    let step = (bytes.len() / SAMPLES).max(SAMPLE_BYTES);
    let pieces = bytes.chunks(step).flat_map(|piece| &piece[..SAMPLE_BYTES.min(piece.len())]);
    xxh3_64(&pieces.copied().collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_weights_is_found() {
        let [a, b] = [1, 2].map(|value: u8| vec![value; 5000]);
        let mut c = a.clone();
        c[100] = 9;
        assert_eq!(sample(&a), sample(&c), "no sample has that byte");
        let short = vec![1; 40];
        let weights: Vec<&[u8]> = vec![&a, &b, &c, &a, &short, &b, &short, &[], &[]];
        assert_eq!(first_equal(&weights, |_, _| true), [0, 1, 2, 0, 4, 1, 4, 7, 8]);
        assert_eq!(first_equal(&weights, |_, index| index != 3), [0, 1, 2, 3, 4, 1, 4, 7, 8]);
        assert_eq!(first_shared(&weights), [0, 1, 2, 0, 4, 1, 4, 7, 8]);
        let other = a.clone();
        assert_eq!(first_shared(&[&a, &other, &a[1..], &a]), [0, 1, 2, 0]);
    }
}
