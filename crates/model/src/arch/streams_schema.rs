//! The schema of several residual streams.

use serde::Deserialize;

use super::field::Field;

/// Residual streams (AltUp, Baykal et al. 2023, arXiv 2301.13310): a layer reads the first one and changes all of
/// them. Beside attention, it has two matrices of a low rank (LAuReL, Menghani et al. 2024, arXiv 2411.07501).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamsSchema {
    /// Whether the first stream is multiplied, column by column, before it gates a layer's embedding.
    pub scaled: Field,
    /// The rank of the matrices beside attention.
    pub rank: Field,
}
