//! The golden graphs: two layers that together use every op.

use girih_graph::Graph;

/// Tokens in, logits out.
pub const TOKENS: &str = include_str!("../forms/tokens.graph");
/// The same layers, with embeddings in and hidden rows out.
pub const EMBEDDINGS: &str = include_str!("../forms/embeddings.graph");

pub fn parse(text: &str) -> Graph {
    text.parse().unwrap_or_else(|error| panic!("{error}, in:\n{text}"))
}

/// `text` with its only occurrence of `from` replaced by `to`.
pub fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "'{from}' occurs once in the form");
    text.replace(from, to)
}
