//! Text with its origin: the chat template's own words, or a user's.

/// Who wrote a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOrigin {
    /// The template, the program, or a user's text that spells no special
    /// token: special tokens spelled here are meant.
    Template,
    /// A user who spells a special token: it is only text.
    User,
}

/// A piece of a prompt and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSpan {
    /// The text; it may be empty.
    pub text: String,
    /// Who wrote it.
    pub origin: TextOrigin,
}
