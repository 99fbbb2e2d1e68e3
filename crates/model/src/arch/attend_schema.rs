//! The schema of the parts of attention: norms of queries and keys, gates, temperatures, and bases by layer.

use serde::Deserialize;

use super::field::Field;
use super::rope_schema::PairingSchema;

/// What the norms of queries and keys divide by, and when. All are root-mean-square norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head for itself, before its rotation.
    Heads,
    /// Each head for itself, after its rotation.
    RotatedHeads,
    /// All heads of a row together, before their rotation.
    Rows,
}

/// A list of `config.json` with the base of each layer's rotary frequencies; layers with 0 do not rotate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerBases {
    /// The list. Its default may be `base`: that of the table for all layers.
    pub field: Field,
    /// Whether transformers reads only which are 0, so that others must be the table's base.
    #[serde(default)]
    pub only_zeros: bool,
}

/// Latent attention (DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all heads are made of one latent, beside
/// a rotated key that all heads share. `head_size` is that of queries and keys in a GGUF; in `config.json` it follows
/// from its parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentSchema {
    /// The size of the latent of queries, for models that have one: their weights say so.
    pub query_rank: Field,
    /// The size of the latent.
    pub rank: Field,
    /// The part of a query that is not rotated, in `config.json`.
    pub nope: Field,
    /// The part of a query that is rotated, and the size of the shared key.
    pub rope: Field,
    /// The size of a head of values.
    pub value_size: Field,
    /// The epsilon of the norms of latents.
    pub epsilon: Field,
    /// The choice of the positions that a row attends to.
    pub indexer: Option<IndexerSchema>,
}

/// The choice of the positions that a row attends to (DeepSeek-AI 2025, arXiv 2512.02556): by scores of heads of its own,
/// whose queries are made of the latent of queries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexerSchema {
    /// The number of heads.
    pub heads: Field,
    /// The size of a head, whose first numbers are rotated as those of attention.
    pub size: Field,
    /// The number of positions that a row attends to.
    pub best: Field,
    /// The components that form a pair.
    pub pairing: PairingSchema,
    /// The epsilon of the norm of keys.
    pub epsilon: Field,
    /// A list of `config.json` with `full` for a layer that chooses, and `shared` for one that takes the choice before it;
    /// without the list, all choose.
    pub listed: Option<Field>,
}

/// The source of values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValuesSchema {
    /// Whether each head is normalized, without a weight.
    #[serde(default)]
    pub norm: bool,
    /// Whether they are the projection of keys, before its norm and its rotation. In a GGUF, a missing weight says so.
    pub are_keys_if: Option<Field>,
}

/// The activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names suffice
pub enum OutputGateAct {
    Sigmoid,
    Softplus,
}

/// The fields of a [`Temperature`](girih_graph::Temperature) of queries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperatureSchema {
    /// Whether queries are multiplied at all.
    #[serde(rename = "if")]
    pub condition: Option<Field>,
    /// The factor of the logarithm.
    pub beta: Field,
    /// The number of positions with the same factor.
    pub every: Field,
    /// What is added to the position.
    #[serde(default)]
    pub offset: u32,
}
