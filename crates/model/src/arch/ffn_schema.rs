//! The schema of feed-forward parts in an `archs/*.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::field::Field;

/// The feed-forward part.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FfnSchema {
    /// `down(act(gate(x)) · up(x))`.
    Gated(DenseSchema),
    /// `down(act(up(x)))`.
    Plain(DenseSchema),
    /// Experts, of which each row chooses some.
    Experts(Box<ExpertsSchema>),
    /// None: the layer has a mixer only.
    None {},
}

/// Experts, of which each row chooses some.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSchema {
    /// The number of experts.
    pub count: Field,
    /// The number of experts that a row chooses.
    pub used: Field,
    /// Each expert.
    pub each: DenseSchema,
    /// What the scores of the router become: `softmax` or `sigmoid`, or a number of GGUF (llama.cpp's
    /// `enum llama_expert_gating_func_type`).
    pub score: Field,
    /// Whether the weights of a row are divided by their sum.
    pub normalized: Field,
    /// Whether the weights of a softmax are divided by their sum, whatever `normalized` says: a softmax of the
    /// chosen experts only.
    #[serde(default)]
    pub softmax_of_chosen: bool,
    /// What is added to that sum.
    #[serde(default)]
    pub epsilon: f32,
    /// The factor of all weights. In a GGUF, 0 is none.
    pub factor: Option<Field>,
    /// The noise of a router by SparseMixer: experts are near a chosen one within twice this share of their scores.
    pub jitter: Option<Field>,
    /// The softcap of scores; 0 is none.
    pub softcap: Option<Field>,
    /// The number of groups of experts, and of those that a row uses.
    pub groups: Option<Field>,
    /// The number of groups that a row uses.
    pub used_groups: Option<Field>,
    /// A word of `config.json` for models that use groups only with `group_limited_greedy`.
    pub groups_if: Option<Field>,
    /// The number of best experts of a group whose ranks are added up.
    #[serde(default = "two")]
    pub group_best: u32,
    /// The bound of the gate and of the gated value of each expert.
    pub limit: Option<LimitSchema>,
    /// What is added to the gated value.
    pub offset: Option<f32>,
    /// Whether the weight of an expert multiplies its input instead of its result.
    #[serde(default)]
    pub weighs_inputs: bool,
    /// The size of the rows that experts read and make; without a value, it is the hidden size.
    pub latent: Option<Field>,
    /// The expert of all rows.
    pub shared: Option<SharedExpertSchema>,
}

fn two() -> u32 {
    2
}

/// An expert that all rows pass through.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpertSchema {
    /// Its inner size. Without a value, there is no such expert.
    pub size: Option<Field>,
    /// The bound of its gate and of its gated value.
    pub limit: Option<LimitSchema>,
    /// Instead of the size, the number by which that of an expert is multiplied.
    pub count: Option<Field>,
    /// Whether its result and that of the other experts are added up or averaged: `sum` or `average`; `sum`
    /// by default.
    pub combined: Option<Field>,
}

/// The bound of a gate and of what it gates.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum LimitSchema {
    /// Of the gate before its activation: a number.
    Gate(Field),
    /// Of the activated gate: a list in `config.json` with a number for each layer. 0 and null are none.
    Activated {
        /// The list.
        activated: Field,
    },
}

impl LimitSchema {
    /// The field.
    pub fn field(&self) -> &Field {
        match self {
            LimitSchema::Gate(field) | LimitSchema::Activated { activated: field } => field,
        }
    }
}

/// A feed-forward part that all rows pass through.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseSchema {
    /// The inner size.
    pub size: Field,
    /// The activation, under its name in `config.json`.
    pub act: Field,
    /// Names of a whole feed-forward part that stand for its activation, such as `swiglu`.
    #[serde(default)]
    pub act_names: BTreeMap<String, String>,
    /// Experts beside it, which read the same rows before their norm.
    pub beside: Option<Box<BesideSchema>>,
    /// Whether `config.json` states half the size of layers that read the keys and values of others.
    pub hf_doubled_if: Option<Field>,
    /// The bound of the gate and of the gated value.
    pub limit: Option<LimitSchema>,
    /// The factor of the gate, before its activation.
    pub gate_scale: Option<Field>,
    /// The factor of the output.
    pub output_scale: Option<Field>,
    /// How transformers makes the inner size of what `config.json` states; a GGUF has the result.
    pub hf_rounded: Option<RoundedSize>,
}

/// Experts beside a dense part.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideSchema {
    /// Whether the model has them. A GGUF without a key for it says so by the router's weight.
    #[serde(rename = "if")]
    pub condition: Field,
    /// The experts.
    pub experts: ExpertsSchema,
}

/// Two thirds of a size, times a number, rounded up to a multiple.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundedSize {
    /// Whether the size is rounded at all.
    #[serde(rename = "if")]
    pub condition: Field,
    /// The number.
    pub times: Field,
    /// What the size is a multiple of.
    pub multiple: Field,
}

/// Which layers of a model with experts have none. All rules count; a list of the model replaces them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseLayersSchema {
    /// The number of first layers without experts.
    pub first: Option<Field>,
    /// The index of the last layer with experts; −1 is that of the last layer.
    pub last: Option<Field>,
    /// The number n of a model of which only every n-th layer has experts.
    pub step: Option<Field>,
    /// The indexes of layers without experts in `config.json`.
    pub indexed: Option<Field>,
    /// The indexes of layers with experts in `config.json`.
    pub others_indexed: Option<Field>,
    /// A list in `config.json` that says for each layer `dense` or `sparse`.
    pub listed: Option<Field>,
    /// A number without which no layer has experts, such as theirs: 0 is none.
    pub unless: Option<Field>,
}

/// A kind of feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FfnKind {
    /// [`FfnSchema::Gated`] and [`FfnSchema::Plain`].
    Dense,
    /// [`FfnSchema::Experts`].
    Experts,
    /// [`FfnSchema::None`].
    None,
}

impl FfnSchema {
    /// Its kind.
    pub fn kind(&self) -> FfnKind {
        match self {
            FfnSchema::Gated(_) | FfnSchema::Plain(_) => FfnKind::Dense,
            FfnSchema::Experts(_) => FfnKind::Experts,
            FfnSchema::None {} => FfnKind::None,
        }
    }
}
