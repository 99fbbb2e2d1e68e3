//! Locally typical sampling (Meister et al. 2022, arXiv 2202.00666).

use super::logits::{candidates, highest, rule_out, weight};

/// Keeps the tokens whose information is nearest to the distribution's entropy, up to the
/// cumulative probability `p`.
pub fn typical_p(logits: &mut [f32], p: f32) {
    if p >= 1.0 {
        return;
    }
    let (highest, ids) = (highest(logits), candidates(logits));
    let weights: Vec<f64> = ids.iter().map(|id| weight(logits[*id as usize], highest)).collect();
    let total: f64 = weights.iter().sum();
    let information = |weight: f64| total.ln() - weight.ln();
    let expected = |weight: &f64| if *weight > 0.0 { weight / total * information(*weight) } else { 0.0 };
    let entropy: f64 = weights.iter().map(expected).sum();
    let mut order: Vec<(f64, usize)> =
        weights.iter().enumerate().map(|(at, weight)| ((information(*weight) - entropy).abs(), at)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut sum = 0.0;
    let reached = order.iter().position(|(_, at)| {
        sum += weights[*at];
        sum >= total * f64::from(p)
    });
    let keep = reached.map_or(order.len(), |last| last + 1);
    let outside: Vec<u32> = order[keep..].iter().map(|(_, at)| ids[*at]).collect();
    rule_out(logits, &outside);
}
