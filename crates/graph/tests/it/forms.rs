//! The golden graphs, which together use every op.

use girih_graph::Graph;

/// Two layers, with tokens in and logits out.
pub const TOKENS: &str = include_str!("../forms/tokens.graph");
/// The same layers, with embeddings in and hidden rows out.
pub const EMBEDDINGS: &str = include_str!("../forms/embeddings.graph");
/// A layer of an encoder: ids of tokens and of their types in, one row per sequence out.
pub const ENCODER: &str = include_str!("../forms/encoder.graph");

pub fn parse(text: &str) -> Graph {
    text.parse().unwrap_or_else(|error| panic!("{error}, in:\n{text}"))
}

/// `text` with its only occurrence of `from` replaced by `to`.
pub fn edited(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "'{from}' occurs once in the form");
    text.replace(from, to)
}
