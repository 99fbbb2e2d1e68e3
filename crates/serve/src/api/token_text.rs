//! Tokens and their log-probabilities as JSON can write them, for all APIs.

use girih::Model;

/// What OpenAI's API writes for a probability of 0, as JSON has no infinity.
const IMPOSSIBLE: f64 = -9999.0;

/// The bytes of a token; none without a tokenizer.
pub fn token_bytes(id: u32, model: &Model) -> Vec<u8> {
    model.text_processor().map(|text| text.tokenizer.token_bytes(id)).unwrap_or_default()
}

/// A log-probability that JSON can write.
pub fn finite(logprob: f64) -> f64 {
    logprob.max(IMPOSSIBLE)
}
