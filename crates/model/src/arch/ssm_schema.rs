//! The schema of state space models: the mixer of Mamba-2.

use serde::Deserialize;

use super::field::Field;

/// The mixer of Mamba-2: five projections, three of which are convolved, a scan, a gate, and an output projection.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsmSchema {
    /// The number of heads.
    pub heads: Field,
    /// The size of a head. Without a value, or with `auto`, it follows from the inner size.
    pub head_size: Option<Field>,
    /// The inner size: that of all heads.
    pub inner: Option<Field>,
    /// The inner size as a multiple of the hidden size.
    pub expand: Option<Field>,
    /// The number of groups of heads that share `b` and `c`.
    pub groups: Field,
    /// The columns of a head's state.
    pub state: Field,
    /// The number of taps of the convolutions.
    pub taps: Field,
    /// The activation of what is convolved.
    pub act: Field,
    /// The smallest step.
    pub least: Option<Field>,
    /// The largest step; infinity is none.
    pub most: Option<Field>,
    /// Whether the scan's results are normed, by groups and with the layer's epsilon; by default, they are.
    pub norm_if: Option<Field>,
    /// The epsilon of that norm, if it is not the layer's.
    pub norm_epsilon: Option<Field>,
    /// Whether the results are normed before they are gated, instead of after.
    pub norm_first: Option<Field>,
    /// The factor of the input.
    pub input_scale: Option<Field>,
    /// The factor of the output.
    pub output_scale: Option<Field>,
    /// The factors of the projections `z`, `x`, `b`, `c` and `dt`.
    #[serde(default)]
    pub scales: Vec<Field>,
}

/// A part of the tensor of all projections, or of that of the convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names suffice
pub enum SsmPart {
    Z,
    X,
    B,
    C,
    Dt,
}
