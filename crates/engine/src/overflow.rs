//! Requests that exceed the context: refused, or cut to their first token and their last
//! tokens.

/// What happens when a prompt, or a prompt with its reply, exceeds the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The request is refused.
    #[default]
    Error,
    /// When the context is full, keeps half of it (the first token, usually BOS, and the
    /// most recent tokens), drops the rest and prefills what is kept again. The caller sees
    /// one reply. Without a maximum number of new tokens, only the prompt is cut, and the
    /// reply ends when the context is full.
    Truncate,
}

impl Overflow {
    /// The number of tokens that stay of `have` tokens if at least `new` more are to
    /// follow in a context of `context` tokens.
    pub(crate) fn kept(self, have: usize, new: usize, context: u32) -> usize {
        let context = context as usize;
        match self {
            Overflow::Truncate if have.saturating_add(new) > context && context > 1 => (context / 2).max(1),
            Overflow::Error | Overflow::Truncate => have,
        }
    }
}

/// Drops tokens until `kept` are left: the first one and the last ones.
pub(crate) fn cut(tokens: &mut Vec<u32>, kept: usize) {
    if kept < tokens.len() {
        tokens.drain(1..tokens.len() - (kept - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(overflow: Overflow, have: u32, new: usize, context: u32) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..have).collect();
        cut(&mut tokens, overflow.kept(have as usize, new, context));
        tokens
    }

    #[test]
    fn a_request_that_does_not_fit_loses_its_oldest_tokens() {
        let truncated = |have, context| left(Overflow::Truncate, have, 1, context);
        assert_eq!(truncated(5, 8), [0, 1, 2, 3, 4]);
        assert_eq!(truncated(7, 8), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(truncated(8, 8), [0, 5, 6, 7]);
        assert_eq!(truncated(20, 8), [0, 17, 18, 19]);
        assert_eq!(truncated(20, 2), [0]);
        assert_eq!(truncated(3, 1), [0, 1, 2], "the engine refuses it");
        assert_eq!(left(Overflow::Error, 9, 1, 8).len(), 9, "the engine refuses it");
    }

    #[test]
    fn a_prompt_without_a_reply_may_fill_the_context() {
        assert_eq!(left(Overflow::Truncate, 8, 0, 8).len(), 8);
        assert_eq!(left(Overflow::Truncate, 9, 0, 8), [0, 6, 7, 8]);
    }
}
