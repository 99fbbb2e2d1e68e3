//! The perplexity of a model on a text.

use girih_engine::Engine;
use girih_graph::backend::Unwatched;
use serde::Serialize;

use crate::Result;
use crate::progress::{ProgressWatcher, TokenCounter};

/// The perplexity of a text.
#[derive(Clone, Debug, Serialize)]
pub struct Perplexity {
    /// The number of scored tokens: all but the first.
    pub scored: usize,
    /// The mean negative log-likelihood of a token, in nats.
    pub nll: f64,
    /// `exp(nll)`.
    pub perplexity: f64,
    /// The negative log-likelihood of each scored token, in nats.
    pub tokens: Vec<f64>,
}

/// Scores `tokens` in windows of up to `window` tokens.
///
/// Windows overlap by half. In every window but the first, only the second half is
/// scored; so a scored token has at least half a window before it, except at the
/// beginning of the text. `progress` counts scored tokens.
///
/// # Errors
/// When a window is larger than the engine's context, or a step fails.
pub fn perplexity(
    engine: &mut Engine,
    tokens: &[u32],
    window: usize,
    progress: ProgressWatcher<'_>,
) -> Result<Perplexity> {
    let window = window.max(2);
    let mut counter = TokenCounter::new(tokens.len().saturating_sub(1) as u64, progress);
    let mut surprises = Vec::with_capacity(tokens.len().saturating_sub(1));
    let mut start = 0;
    loop {
        let end = (start + window).min(tokens.len());
        let part = &tokens[start..end];
        let scored = surprises.len() + 1 - start;
        engine.logits(part, &mut Unwatched, |index, logits| {
            if let Some(&next) = part.get(index + 1).filter(|_| index + 1 >= scored) {
                surprises.push(surprise(logits, next));
                counter.add(1);
            }
        })?;
        if end == tokens.len() {
            break;
        }
        start = end - window / 2;
    }
    let nll = surprises.iter().sum::<f64>() / surprises.len().max(1) as f64;
    Ok(Perplexity { scored: surprises.len(), nll, perplexity: nll.exp(), tokens: surprises })
}

/// Returns `−ln softmax(logits)[token]`.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - largest)
}
