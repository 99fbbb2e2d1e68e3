//! The schema of the gated delta rule.

use serde::Deserialize;

use super::field::Field;

/// The gated delta rule: convolved queries, keys and values, a rule that corrects a matrix for each head, and a gated
/// norm.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaRuleSchema {
    /// The number of heads of queries and keys.
    pub key_heads: Field,
    /// The number of heads of values, which share those of keys.
    pub value_heads: Field,
    /// Whether heads of values take turns with those of keys in a GGUF, instead of neighbours sharing one.
    #[serde(default)]
    pub gguf_turns: bool,
    /// The size of a head of queries or keys. Its default may be `3/4 width / key_heads`.
    pub key_size: Field,
    /// The size of a head of values. Its default may be `2 * key_size`.
    pub value_size: Field,
    /// The size of all heads of values together, for models that state it instead.
    pub values: Option<Field>,
    /// The number of taps of the convolutions.
    pub taps: Field,
    /// The activation of what is convolved.
    pub act: Field,
    /// The epsilon of the norm of the results, if it is not that of the layer's norms.
    pub norm_epsilon: Option<Field>,
    /// Whether a correction may reach twice as far, so that a matrix may change its sign.
    pub doubled: Option<Field>,
}

/// A part of the rows of a tensor of several projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names suffice
pub enum DeltaPart {
    Q,
    K,
    V,
    /// The gates of the results.
    Z,
    /// How far values are corrected, before its sigmoid.
    Beta,
    /// The steps of the decay.
    Dt,
}
