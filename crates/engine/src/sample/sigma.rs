//! Top-nσ (Tang et al. 2024, arXiv 2411.07641).

use super::logits::highest;

/// Keeps the tokens whose logit is at most `n` standard deviations below the highest one; 0 keeps
/// all. The deviation is that of the finite logits. Both scale alike with the temperature, which
/// therefore changes nothing here.
pub fn top_n_sigma(logits: &mut [f32], n: f32) {
    let highest = highest(logits);
    if n <= 0.0 || !highest.is_finite() {
        return;
    }
    let finite = || logits.iter().filter(|logit| logit.is_finite()).map(|logit| f64::from(*logit));
    let count = finite().count() as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    let least = f64::from(highest) - f64::from(n) * variance.sqrt();
    for logit in logits.iter_mut().filter(|logit| f64::from(**logit) < least) {
        *logit = f32::NEG_INFINITY;
    }
}
