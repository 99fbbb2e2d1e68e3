//! The schema of the parts of attention: norms of queries and keys, gates, temperatures, and bases by layer.

use serde::Deserialize;

use super::field::Field;

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
