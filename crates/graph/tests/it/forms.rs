//! The golden graphs: two layers that between them use every operator.

use girih_graph::Graph;

/// Tokens in, logits out.
pub const TOKENS: &str = include_str!("../forms/tokens.graph");
/// The same layers, with embeddings in and hidden rows out.
pub const EMBEDDINGS: &str = include_str!("../forms/embeddings.graph");

pub fn parse(text: &str) -> Graph {
    text.parse().unwrap_or_else(|error| panic!("{error}, in:\n{text}"))
}

/// `text` with the one place that reads `from` made to read `to`.
pub fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "'{from}' names one place of the form");
    text.replace(from, to)
}
