//! What norms compute.

use serde::Deserialize;

/// What a norm computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Division by the root mean square, then a weight.
    #[default]
    Rms,
    /// Layer norm, with a weight, and a bias if the model has one.
    Layer,
}
