//! Text with its origin: the chat template or a user.

/// The origin of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOrigin {
    /// The template, the program, or text of a user without special tokens:
    /// special tokens in it are recognized.
    Template,
    /// A user's text with a special token in it, which is encoded as plain text.
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
