//! Facts of blocks: attention and a feed-forward part whose weights several layers share.

use serde::Serialize;

/// The block of a layer: its attention and its feed-forward part, which come before its Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockFacts {
    /// The first layer with the block's weights.
    #[serde(rename = "block_of_layer")]
    pub of_layer: usize,
    /// The rank of the layer's adapters.
    #[serde(rename = "block_rank")]
    pub rank: usize,
    /// Whether queries, keys and values have adapters, too.
    #[serde(rename = "block_adapts_attention")]
    pub in_attention: bool,
}
