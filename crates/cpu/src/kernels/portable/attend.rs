//! The two loops of attention besides the scores, which are dot products.

pub(super) fn weigh(scores: &mut [f32]) -> (f32, f32) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores {
        *score = (*score - largest).exp();
        sum += *score;
    }
    (largest, sum)
}

pub(super) fn blend(weights: &[f32], values: &[f32], sums: &mut [f32]) {
    for (weight, values) in weights.iter().zip(values.chunks_exact(sums.len())) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += weight * value;
        }
    }
}
