//! What a server decides for all replies.

use girih::RepetitionRule;

/// What a server decides for all replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyRules {
    /// The maximum number of tokens of thinking; a request may ask for less. Default `None`.
    pub max_thinking: Option<u32>,
    /// When a reply ends because it repeats itself. Default `None`.
    pub repetition: Option<RepetitionRule>,
}
