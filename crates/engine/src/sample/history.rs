//! The tokens that penalties look at.

/// The tokens before the one to be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// Those of the prompt.
    pub prompt: &'a [u32],
    /// Those of the reply.
    pub reply: &'a [u32],
}
