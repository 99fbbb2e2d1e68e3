//! Logit bias: numbers that the caller adds to the logits of single tokens.

/// Adds each bias to its token's logit. An infinite bias replaces the logit, so that
/// opposite infinities are never added.
pub fn bias(logits: &mut [f32], biases: &[(u32, f32)]) {
    for (id, bias) in biases {
        let logit = &mut logits[*id as usize];
        *logit = if bias.is_infinite() { *bias } else { *logit + *bias };
    }
}
