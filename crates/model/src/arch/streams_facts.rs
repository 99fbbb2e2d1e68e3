//! Facts of several residual streams.

use serde::Serialize;

/// The number of residual streams of all known models.
pub const STREAMS: usize = 4;

/// The name of a weight of one 1, the bias of what corrects streams.
pub const ONE: &str = "streams.one";

/// Several residual streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamsFacts {
    /// Whether the first stream is multiplied, column by column, before it gates a layer's embedding.
    #[serde(rename = "streams_scaled")]
    pub scaled: bool,
    /// The rank of the matrices beside attention.
    #[serde(rename = "streams_rank")]
    pub rank: usize,
}
