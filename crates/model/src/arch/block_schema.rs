//! The schema of blocks: attention and a feed-forward part whose weights several layers share.

use serde::Deserialize;

use super::field::Field;

/// Which layers have a block, and how many blocks there are: layers of this kind have them in turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlocksSchema {
    /// The kind of the layers.
    pub kind: String,
    /// The number of blocks.
    pub count: Field,
}

/// A block of a layer: its attention and its feed-forward part, before its Mamba-2. It reads a row and the row's
/// embedding, one after the other. Mamba-2 reads the sum of the row and of a projection of the block's result.
/// The weights of a block have `{b}` in their names, and are those of the first layer that has the block.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSchema {
    /// The rank of the adapters that each layer has of its own: pairs of matrices whose product is added to a
    /// matrix of the block. The feed-forward part always has them.
    pub rank: Field,
    /// Whether queries, keys and values have adapters, too.
    pub in_attention: Field,
}
