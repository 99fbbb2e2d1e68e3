//! Logit bias: what the caller adds to single tokens.

/// Adds each bias to its token's logit; an infinite bias replaces the logit,
/// so that no sum of opposite infinities arises.
pub fn bias(logits: &mut [f32], biases: &[(u32, f32)]) {
    for (id, bias) in biases {
        let logit = &mut logits[*id as usize];
        *logit = if bias.is_infinite() { *bias } else { *logit + *bias };
    }
}
