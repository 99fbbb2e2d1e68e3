//! Facts of norms.

use serde::Serialize;

use super::schema::NormKind;

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NormFacts {
    /// What it computes.
    #[serde(rename = "norm")]
    pub kind: NormKind,
    /// The epsilon that is added to the mean square or to the variance.
    pub epsilon: f32,
    /// Whether it has a weight.
    #[serde(rename = "norm_weight")]
    pub weight: bool,
    /// Whether it has a bias, which only layer norm may have.
    #[serde(rename = "norm_bias")]
    pub bias: bool,
}
