//! Facts of the gated delta rule.

use std::ops::Range;

use girih_graph::{Act, HeadSharing};
use serde::{Serialize, Serializer};

use super::delta_schema::DeltaPart;

/// The gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeltaRuleFacts {
    /// The number of heads of queries and keys; divides that of values.
    #[serde(rename = "delta_key_heads")]
    pub key_heads: usize,
    /// The number of heads of values.
    #[serde(rename = "delta_value_heads")]
    pub value_heads: usize,
    /// Which heads of values share one of keys: a GGUF may have another order of heads.
    #[serde(rename = "delta_sharing", serialize_with = "sharing_name")]
    pub sharing: HeadSharing,
    /// The size of a head of queries or keys.
    #[serde(rename = "delta_key_size")]
    pub key_size: usize,
    /// The size of a head of values.
    #[serde(rename = "delta_value_size")]
    pub value_size: usize,
    /// The number of rows that a convolved row is made of, its own included.
    pub taps: usize,
    /// The activation of what is convolved.
    #[serde(rename = "delta_act", serialize_with = "act_name")]
    pub act: Act,
    /// The epsilon of the norm of the results.
    #[serde(rename = "delta_norm_epsilon")]
    pub norm_epsilon: f32,
    /// Whether a correction may reach twice as far.
    #[serde(rename = "delta_doubled")]
    pub doubled: bool,
}

impl DeltaRuleFacts {
    /// The values of all queries in a row, and of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_size
    }

    /// The values of all heads in a row.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_size
    }

    /// The number of rows of a tensor of several projections, one of which is `part`: queries, keys and values one after
    /// another; or for each head of keys queries, keys, values and gates, or betas and steps.
    pub fn rows_of_tensor(&self, part: DeltaPart, is_grouped: bool) -> usize {
        match part {
            _ if !is_grouped => 2 * self.keys() + self.values(),
            DeltaPart::Q | DeltaPart::K | DeltaPart::V | DeltaPart::Z => 2 * (self.keys() + self.values()),
            DeltaPart::Beta | DeltaPart::Dt => 2 * self.value_heads,
        }
    }

    /// The rows of queries, keys or values in a tensor that has them one after another. It has no other part.
    pub fn flat_rows(&self, part: DeltaPart) -> Range<usize> {
        let (keys, values) = (self.keys(), self.values());
        match part {
            DeltaPart::Q => 0..keys,
            DeltaPart::K => keys..2 * keys,
            DeltaPart::V => 2 * keys..2 * keys + values,
            DeltaPart::Z | DeltaPart::Beta | DeltaPart::Dt => 0..0,
        }
    }

    /// The rows of a part in a tensor that is cut by heads of keys, by head.
    pub fn grouped_rows(&self, part: DeltaPart) -> Vec<Range<usize>> {
        let shared = self.value_heads / self.key_heads;
        let (key, value) = (self.key_size, shared * self.value_size);
        let (start, length) = match part {
            DeltaPart::Q => (0, key),
            DeltaPart::K => (key, key),
            DeltaPart::V => (2 * key, value),
            DeltaPart::Z => (2 * key + value, value),
            DeltaPart::Beta => (0, shared),
            DeltaPart::Dt => (shared, shared),
        };
        let each = self.rows_of_tensor(part, true) / self.key_heads;
        (0..self.key_heads).map(|head| head * each + start..head * each + start + length).collect()
    }
}

fn sharing_name<S: Serializer>(sharing: &HeadSharing, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match sharing {
        HeadSharing::Neighbours => "neighbours",
        HeadSharing::Turns => "turns",
    })
}

fn act_name<S: Serializer>(act: &Act, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(act.name())
}
