//! The tokens that penalties apply to.

/// The tokens before the one to be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The tokens of the prompt.
    pub prompt: &'a [u32],
    /// The tokens of the reply.
    pub reply: &'a [u32],
}
