//! What FastFlowLM's converter makes of the models of an architecture.

use std::num::NonZeroUsize;

use serde::Deserialize;

/// How FastFlowLM's converter writes models of the architecture as `model.q4nx`. Of other architectures, girih reads only
/// the files that it wrote.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Q4nxSchema {
    /// The integers of matrices that are not in a format with such integers already.
    pub codes: Q4nxCodes,
    /// The size of the feed-forward part is padded with zeros to a multiple of this, in rows or columns.
    #[serde(default = "one")]
    pub ffn_multiple: NonZeroUsize,
    /// Whether the table of embeddings in the file is already multiplied by the model's factor for embeddings.
    #[serde(default)]
    pub scaled_embeddings: bool,
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

/// The integers of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Q4nxCodes {
    /// Those of Q4_0: signed, with scales only.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// Those of Q4_1: with minimums.
    #[serde(rename = "q4_1")]
    Q4_1,
}
