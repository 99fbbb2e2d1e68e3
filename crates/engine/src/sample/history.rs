//! The tokens that penalties apply to.

/// The tokens before the one to be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The tokens of the prompt.
    pub prompt: &'a [u32],
    /// The tokens of the reply.
    pub reply: &'a [u32],
}

impl<'a> History<'a> {
    /// The last `count` tokens; all of them if it is 0.
    pub fn last(self, count: u32) -> History<'a> {
        let (prompt, reply, count) = (self.prompt, self.reply, count as usize);
        if count == 0 {
            return self;
        }
        let of_prompt = count.saturating_sub(reply.len());
        History {
            prompt: &prompt[prompt.len().saturating_sub(of_prompt)..],
            reply: &reply[reply.len().saturating_sub(count)..],
        }
    }
}
