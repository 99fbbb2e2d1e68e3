//! Facts of the mixer of Mamba-2.

use std::ops::Range;

use girih_graph::Act;
use serde::{Serialize, Serializer};

use super::ssm_schema::SsmPart;

/// The mixer of Mamba-2 (Dao & Gu 2024, arXiv 2405.21060).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SsmFacts {
    /// The number of heads.
    #[serde(rename = "ssm_heads")]
    pub heads: usize,
    /// The size of a head.
    #[serde(rename = "ssm_head_size")]
    pub head_size: usize,
    /// The number of groups of heads that share `b` and `c`.
    #[serde(rename = "ssm_groups")]
    pub groups: usize,
    /// The columns of a head's state.
    #[serde(rename = "ssm_state")]
    pub state: usize,
    /// The number of rows that a convolved row is made of, its own included.
    pub taps: usize,
    /// The activation of what is convolved.
    #[serde(rename = "ssm_act", serialize_with = "act_name")]
    pub act: Act,
    /// The smallest step.
    #[serde(rename = "ssm_least_step")]
    pub least: f32,
    /// The largest step, if there is a limit.
    #[serde(rename = "ssm_most_step")]
    pub most: Option<f32>,
    /// The norm of the scan's results, if there is one.
    #[serde(rename = "ssm_norm")]
    pub norm: Option<SsmNormFacts>,
    /// Whether the projections `z`, `x`, `b`, `c` and `dt` have biases.
    #[serde(rename = "ssm_biases")]
    pub biases: bool,
    /// Whether the output projection has a bias.
    #[serde(rename = "ssm_output_bias")]
    pub output_bias: bool,
    /// Whether the convolutions have biases.
    #[serde(rename = "ssm_tap_biases")]
    pub tap_biases: bool,
    /// The factor of the input.
    #[serde(rename = "ssm_input_scale")]
    pub input_scale: Option<f32>,
    /// The factor of the output.
    #[serde(rename = "ssm_output_scale")]
    pub output_scale: Option<f32>,
    /// The factors of the projections `z`, `x`, `b`, `c` and `dt`.
    #[serde(rename = "ssm_scales")]
    pub scales: Option<[f32; 5]>,
}

/// The norm of the scan's results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SsmNormFacts {
    /// The epsilon that is added to the mean square.
    pub epsilon: f32,
    /// Whether results are normed before they are gated, instead of after.
    pub first: bool,
}

impl SsmFacts {
    /// The values of all heads in a row.
    pub fn inner(&self) -> usize {
        self.heads * self.head_size
    }

    /// The values of `b` in a row, and of `c`.
    pub fn columns(&self) -> usize {
        self.groups * self.state
    }

    /// The number of rows of the tensor of all projections; of that of the convolutions if `convolved`.
    pub fn all_rows(&self, convolved: bool) -> usize {
        let of_scan = self.inner() + 2 * self.columns();
        if convolved { of_scan } else { self.inner() + of_scan + self.heads }
    }

    /// The rows of a part in that tensor; the convolutions have neither `z` nor `dt`.
    pub fn rows(&self, part: SsmPart, convolved: bool) -> Range<usize> {
        let (inner, columns) = (self.inner(), self.columns());
        let before = if convolved { 0 } else { inner };
        let (start, len) = match part {
            SsmPart::Z => (0, inner),
            SsmPart::X => (before, inner),
            SsmPart::B => (before + inner, columns),
            SsmPart::C => (before + inner + columns, columns),
            SsmPart::Dt => (before + inner + 2 * columns, self.heads),
        };
        start..start + len
    }
}

fn act_name<S: Serializer>(act: &Act, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(act.name())
}
