//! Text with its origin: the chat template or a user.

/// The origin of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOrigin {
    /// The template or the program: special tokens are recognized. Also a user's
    /// text without special tokens.
    Template,
    /// A user: special tokens are encoded as plain text.
    User,
}

/// A range of a prompt with one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSpan {
    /// The text; it may be empty.
    pub text: String,
    /// The origin of the text.
    pub origin: TextOrigin,
}
