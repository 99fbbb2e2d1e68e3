//! What a position of a sequence holds, as the prefix cache compares it.

use std::sync::Arc;

/// What a position holds. Two sequences whose first keys are equal have the same state there,
/// except within a mutual span that is not over yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PositionKey {
    /// A token.
    Token(u32),
    /// A token in a mutual span, a given row, or the first token of a sequence that uses an adapter.
    Content(Arc<PositionContent>),
}

/// What a position holds that is not just a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionContent {
    /// The content that gives the row, and the row's index there; `None` for a token's embedding.
    pub given: Option<([u8; 32], u32)>,
    /// The token; a given row replaces its embedding.
    pub token: u32,
    /// The index of the position within its mutual span, and the span's length.
    pub span: Option<(u32, u32)>,
    /// The adapter that the sequence uses, at its first position.
    pub adapter: Option<u32>,
}
