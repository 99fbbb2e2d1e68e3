//! Facts: the parameters that a graph is built from, one entry per layer,
//! independent of files. Serialized, they are what `inspect` shows.

use girih_graph::{Act, GateLimit, GateRule, Pairing, Pooling, Router, Span, Temperature, Xielu};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::block_facts::BlockFacts;
use super::delta_facts::DeltaRuleFacts;
pub use super::norm_facts::NormFacts;
use super::rope_axes::RopeAxes;
use super::schema::{NormPosition, QkNorm};
use super::ssm_facts::SsmFacts;
use super::streams_facts::StreamsFacts;
use super::tower_facts::TowerFacts;

/// The parameters of a model; equal for every container of the same model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// The architecture's name.
    #[serde(rename = "architecture")]
    pub name: String,
    /// Sizes of the whole model.
    #[serde(flatten)]
    pub sizes: ModelSizes,
    /// The embedding.
    #[serde(flatten)]
    pub embed: EmbedFacts,
    /// One entry per layer.
    pub layers: Vec<LayerFacts>,
    /// The final norm and the head; `None` for encoders, whose rows see later rows and predict
    /// no next token.
    #[serde(flatten)]
    pub head: Option<Head>,
    /// How the rows of a text become one vector; `None` if the model defines no such vector.
    pub pooling: Option<PoolingFacts>,
    /// The residual streams, if there are several.
    #[serde(flatten)]
    pub streams: Option<StreamsFacts>,
    /// The model that it drafts for, if it is an assistant.
    #[serde(flatten)]
    pub assistant: Option<AssistantFacts>,
    /// What it reads and makes, if it is an image tower.
    #[serde(flatten)]
    pub tower: Option<TowerFacts>,
    /// The number of first layers to whose outputs further rows of images are added.
    #[serde(rename = "image_layers", skip_serializing_if = "is_zero")]
    pub image_layers: usize,
}

/// Whether a fact is that of models without the part.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What an assistant needs of the model that it drafts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AssistantFacts {
    /// That model's hidden size.
    #[serde(rename = "assistant_of_width")]
    pub width: usize,
}

impl Facts {
    /// Whether the model is an encoder: rows of a text in, hidden states or one vector out.
    pub fn is_encoder(&self) -> bool {
        self.head.is_none()
    }
}

/// Sizes of a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelSizes {
    /// The hidden size.
    pub width: usize,
    /// The number of rows of the embedding table; 0 for an image tower, which has none.
    pub vocabulary: usize,
    /// The number of positions that the model was trained for.
    pub context: usize,
}

/// The embedding: the sum of a row of each table, normalized if there is a norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EmbedFacts {
    /// The factor that the rows of tokens are multiplied by.
    #[serde(rename = "embed_scale")]
    pub scale: Option<f32>,
    /// The number of token types, if there is a table of them.
    pub token_types: Option<usize>,
    /// The number of rows of the table of positions, if there is one.
    #[serde(rename = "learned_positions")]
    pub positions: Option<usize>,
    /// The norm of the sum.
    #[serde(rename = "embed_norm")]
    pub norm: Option<NormFacts>,
}

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolingFacts {
    /// Which rows the vector is made of.
    #[serde(serialize_with = "pooling_name")]
    pub how: Pooling,
    /// Whether the vector is divided by its length. The graph leaves that to the caller.
    pub normalized: bool,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerFacts {
    /// The kind of the layer in the architecture's description.
    pub kind: String,
    /// The part that combines values of several positions.
    #[serde(flatten)]
    pub mixer: Mixer,
    /// The feed-forward part.
    #[serde(flatten)]
    pub ffn: Ffn,
    /// The norms.
    #[serde(flatten)]
    pub norms: Norms,
    /// How the parts are added to the residual.
    #[serde(flatten)]
    pub residual: Residual,
    /// The block that the attention and the feed-forward part are, if they are one.
    #[serde(flatten)]
    pub block: Option<BlockFacts>,
    /// The experts beside the feed-forward part.
    #[serde(rename = "experts_beside", skip_serializing_if = "Option::is_none")]
    pub beside: Option<Box<ExpertsFacts>>,
    /// The layer's own embedding, which is added after the feed-forward part.
    #[serde(flatten)]
    pub input: Option<LayerInput>,
    /// The factor of the layer's result.
    #[serde(rename = "layer_scale", skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// The embedding of a layer's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerInput {
    /// Its size.
    #[serde(rename = "layer_input")]
    pub size: usize,
    /// The number of rows of its table.
    #[serde(rename = "layer_input_vocabulary")]
    pub vocabulary: usize,
    /// The activation of its gate: that of the feed-forward part.
    #[serde(rename = "layer_input_act", serialize_with = "act_name")]
    pub act: Act,
}

/// How the parts of a layer are added to the residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Residual {
    /// Whether the mixer and the feed-forward part read the same rows, instead of one after the other.
    #[serde(rename = "parallel_residual")]
    pub parallel: bool,
    /// The factor that the results are multiplied by before they are added.
    #[serde(rename = "residual_scale")]
    pub scale: Option<f32>,
}

/// The part of a layer that combines values of several positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "mixer", rename_all = "snake_case")]
pub enum Mixer {
    /// Attention.
    Attend(AttentionFacts),
    /// A gated short convolution: `out(c(x) · conv(b(x) · x(x)))` of four projections.
    ShortConv(ShortConvFacts),
    /// Mamba-2.
    Ssm(SsmFacts),
    /// Attention and Mamba-2 of the same rows, whose results are added.
    AttendAndSsm {
        /// Attention.
        #[serde(flatten)]
        attend: AttentionFacts,
        /// Mamba-2.
        #[serde(flatten)]
        ssm: SsmFacts,
    },
    /// None: the layer has a feed-forward part only.
    None,
    /// The gated delta rule, with convolutions before it and a gated norm behind it.
    DeltaRule(DeltaRuleFacts),
}

impl Mixer {
    /// Attention, if that is the mixer.
    pub fn attention(&self) -> Option<&AttentionFacts> {
        match self {
            Mixer::Attend(attend) | Mixer::AttendAndSsm { attend, .. } => Some(attend),
            Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Ssm(_) | Mixer::None => None,
        }
    }

    /// As [`Mixer::attention`], to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionFacts> {
        match self {
            Mixer::Attend(attend) | Mixer::AttendAndSsm { attend, .. } => Some(attend),
            Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Ssm(_) | Mixer::None => None,
        }
    }

    /// Mamba-2, if the mixer has it.
    pub fn ssm(&self) -> Option<&SsmFacts> {
        match self {
            Mixer::Ssm(ssm) | Mixer::AttendAndSsm { ssm, .. } => Some(ssm),
            Mixer::Attend(_) | Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::None => None,
        }
    }
}

/// The short convolution of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ShortConvFacts {
    /// The number of rows that a row is made of, its own included.
    pub taps: usize,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttentionFacts {
    /// The number of query heads.
    pub heads: usize,
    /// The number of KV heads; divides `heads`.
    pub kv_heads: usize,
    /// The size of a head.
    pub head_size: usize,
    /// The size of a head's values, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_size: Option<usize>,
    /// The factor of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_factor: Option<f32>,
    /// The positions that a row attends to.
    #[serde(serialize_with = "span_text")]
    pub span: Span,
    /// Rotary position embedding, if queries and keys are rotated.
    pub rope: Option<Rope>,
    /// The norms of queries and keys; `None` without these norms.
    pub qk_norm: Option<QkNormFacts>,
    /// The projections that have a bias.
    #[serde(rename = "attention_biases")]
    pub biases: Biases,
    /// The factor that attention scores are multiplied by; that of queries is in it.
    pub scale: f32,
    /// The softcap of scores.
    pub softcap: Option<f32>,
    /// Whether each query head has a sink.
    pub sinks: bool,
    /// The gate of the heads' results.
    #[serde(rename = "attention_gate")]
    pub gate: Option<OutputGate>,
    /// The sizes of latent attention, if it is that: then `kv_heads` is 1, and `head_size` that of queries and keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentFacts>,
    /// The source of keys and values.
    #[serde(flatten)]
    pub values: ValuesFacts,
    /// How queries are multiplied by position.
    #[serde(rename = "query_temperature", serialize_with = "temperature_text")]
    pub temperature: Option<Temperature>,
    /// The factor of the input.
    #[serde(rename = "attention_input_scale", skip_serializing_if = "Option::is_none")]
    pub input_scale: Option<f32>,
    /// The factor of the output.
    #[serde(rename = "attention_output_scale", skip_serializing_if = "Option::is_none")]
    pub output_scale: Option<f32>,
}

/// Latent attention: what is cached is one latent for all heads and a rotated key that they share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatentFacts {
    /// The size of the latent of queries, if they have one.
    pub query_rank: Option<usize>,
    /// The size of the latent.
    pub rank: usize,
    /// The part of a head of queries and keys that is not rotated.
    pub nope: usize,
    /// The part that is rotated.
    pub rope: usize,
    /// The size of a head of values.
    pub value_size: usize,
    /// The epsilon of the norms of latents.
    pub epsilon: f32,
    /// Whether the projections to the latents, and to the shared key, have biases.
    pub biases: bool,
    /// The choice of the positions that a row attends to, if it does not attend to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer: Option<IndexerFacts>,
}

/// The choice of the positions that a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct IndexerFacts {
    /// The number of heads.
    pub heads: usize,
    /// The size of a head.
    pub size: usize,
    /// The number of positions that a row attends to.
    pub best: usize,
    /// The components that form a pair.
    #[serde(serialize_with = "pairing_name")]
    pub pairing: Pairing,
    /// The epsilon of the norm of keys.
    pub epsilon: f32,
    /// Whether the layer chooses; if not, it takes the choice of the last one that did.
    pub chooses: bool,
}

/// The source of values, and of keys if they are those of another layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ValuesFacts {
    /// The epsilon of the norm of each head, which has no weight; `None` without this norm.
    #[serde(rename = "value_norm", skip_serializing_if = "Option::is_none")]
    pub norm: Option<f32>,
    /// Whether values are the projection of keys, before its norm and its rotation.
    #[serde(rename = "values_are_keys", skip_serializing_if = "is_false")]
    pub are_keys: bool,
    /// The earlier layer whose keys and values are read, instead of own ones.
    #[serde(rename = "kv_of_layer", skip_serializing_if = "Option::is_none")]
    pub of_layer: Option<usize>,
    /// Whether those of another model are read: of its last layer of this kind that has some.
    #[serde(rename = "kv_of_model", skip_serializing_if = "is_false")]
    pub of_model: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The gate of the results of attention, which is a projection of its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OutputGate {
    /// The activation.
    #[serde(serialize_with = "act_name")]
    pub act: Act,
    /// Whether it has one number for each head, instead of one for each element.
    pub by_head: bool,
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QkNormFacts {
    /// What they divide by, and when.
    pub of: QkNorm,
    /// The epsilon that is added to the mean square.
    pub epsilon: f32,
    /// Whether they have weights.
    pub weight: bool,
}

/// The projections of attention that have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "[bool; 4]")]
#[allow(missing_docs)] // the names suffice
pub struct Biases {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub o: bool,
}

impl From<Biases> for [bool; 4] {
    fn from(Biases { q, k, v, o }: Biases) -> [bool; 4] {
        [q, k, v, o]
    }
}

/// Rotary position embedding of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// The name of its table in the architecture's description.
    pub table: String,
    /// The weight of its frequencies, which all layers with the same ones share.
    pub weight: String,
    /// The components that form a pair.
    #[serde(serialize_with = "pairing_name")]
    pub pairing: Pairing,
    /// The number of components of a head that are rotated: the first ones.
    pub rotated: usize,
    /// The base of the frequencies.
    pub base: f32,
    /// The divisor of each frequency; empty without scaling.
    pub factors: Vec<f32>,
    /// The factor of the rotated components.
    pub factor: Option<f32>,
    /// The factor of scores that belongs to the scaling; that of attention has it.
    #[serde(skip)]
    pub score: Option<f32>,
    /// The number of positions for which the divisors hold, if it is less than the model's; `sizes.context` follows
    /// it.
    pub context: Option<usize>,
    /// The axes of positions, if there are several; those of a text are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axes: Option<RopeAxes>,
}

/// The part of a layer that processes each position separately.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "ffn_kind", rename_all = "snake_case")]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated {
        /// The inner size.
        #[serde(rename = "ffn")]
        size: usize,
        /// The activation of the gate.
        #[serde(serialize_with = "act_name")]
        act: Act,
        /// The bound of the gate and of what it gates.
        #[serde(
            rename = "ffn_limit",
            serialize_with = "limit_number",
            skip_serializing_if = "Option::is_none"
        )]
        limit: Option<GateLimit>,
        /// How many standard deviations above their mean gates are cut, before the activation.
        #[serde(rename = "ffn_cutoff", skip_serializing_if = "Option::is_none")]
        cutoff: Option<f32>,
        /// The factor of the gate, before its activation.
        #[serde(rename = "ffn_gate_scale", skip_serializing_if = "Option::is_none")]
        gate_scale: Option<f32>,
        /// The factor of the output.
        #[serde(rename = "ffn_output_scale", skip_serializing_if = "Option::is_none")]
        output_scale: Option<f32>,
        /// Whether gate, up and down have biases.
        #[serde(rename = "ffn_biases")]
        biases: [bool; 3],
    },
    /// `down(act(up(x)))`.
    Plain {
        /// The inner size.
        #[serde(rename = "ffn")]
        size: usize,
        /// The activation.
        act: PlainAct,
        /// Whether up and down have biases.
        #[serde(rename = "ffn_biases")]
        biases: [bool; 2],
    },
    /// Experts, of which each row chooses some.
    Experts(Box<ExpertsFacts>),
    /// None: the layer has a mixer only.
    None,
}

/// Experts, of which each row chooses some.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsFacts {
    /// The number of experts.
    #[serde(rename = "experts")]
    pub count: usize,
    /// How a row chooses its experts.
    #[serde(flatten, serialize_with = "router_facts")]
    pub router: Router,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// The epsilon of the norm of the router's input, whose weight is divided by the square root of the width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_norm: Option<f32>,
    /// Whether the weight of each expert is multiplied by a number of its own.
    #[serde(skip_serializing_if = "is_false")]
    pub router_factors: bool,
    /// Whether the router has a bias that changes the choice only.
    pub choice_bias: bool,
    /// The softcap of the router's scores.
    pub router_softcap: Option<f32>,
    /// The inner size of each expert.
    #[serde(rename = "ffn")]
    pub size: usize,
    /// How gates and what they gate become one.
    #[serde(flatten, serialize_with = "gate_facts")]
    pub gate: GateRule,
    /// Whether the weight of an expert multiplies its input instead of its result.
    pub weighs_inputs: bool,
    /// Whether experts have no gates, and neither has the shared one: `down(act(up(x)))`.
    #[serde(rename = "ungated_experts", skip_serializing_if = "std::ops::Not::not")]
    pub ungated: bool,
    /// The size of the rows that experts read and make, if a projection makes them narrower.
    #[serde(rename = "experts_latent", skip_serializing_if = "Option::is_none")]
    pub latent: Option<usize>,
    /// Whether gates, ups and downs have biases.
    #[serde(rename = "ffn_biases")]
    pub biases: [bool; 3],
    /// The inner size of the expert that all rows pass through, if there is one.
    pub shared_ffn: Option<usize>,
    /// The bound of its gate and of what it gates.
    #[serde(serialize_with = "limit_number", skip_serializing_if = "Option::is_none")]
    pub shared_limit: Option<GateLimit>,
    /// Whether its result is multiplied by the sigmoid of a score.
    pub shared_is_scored: bool,
    /// Whether the result is the mean of both, instead of their sum.
    pub shared_is_averaged: bool,
}

impl Ffn {
    /// The inner size, if there is one.
    pub fn size(&self) -> Option<usize> {
        match self {
            Ffn::Gated { size, .. } | Ffn::Plain { size, .. } => Some(*size),
            Ffn::Experts(experts) => Some(experts.size),
            Ffn::None => None,
        }
    }

    /// The name of the activation in configurations.
    pub(super) fn act_word(&self) -> Option<&'static str> {
        match self {
            Ffn::Gated { act, .. } | Ffn::Plain { act: PlainAct::Plain(act), .. } => act_word(*act),
            Ffn::Plain { act: PlainAct::Xielu(_), .. } => Some(XIELU),
            Ffn::Experts(experts) => act_word(experts.gate.act),
            Ffn::None => None,
        }
    }

    /// The experts, if there are any.
    pub fn experts(&self) -> Option<&ExpertsFacts> {
        match self {
            Ffn::Experts(experts) => Some(experts),
            Ffn::Gated { .. } | Ffn::Plain { .. } | Ffn::None => None,
        }
    }
}

/// The name of xIELU in configurations.
pub(super) const XIELU: &str = "xielu";

/// The activation of a feed-forward part without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlainAct {
    /// One without parameters.
    Plain(Act),
    /// xIELU with the layer's own parameters.
    Xielu(Xielu),
}

impl Serialize for PlainAct {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            PlainAct::Plain(act) => act_name(act, to),
            PlainAct::Xielu(Xielu { positive, negative, beta, epsilon }) => {
                to.collect_str(&format_args!("{XIELU}({positive}, {negative}, {beta}, {epsilon})"))
            }
        }
    }
}

/// The names of activations in configurations (transformers' `activations.py`); the first one of each is
/// the one that girih writes.
const ACTIVATIONS: [(&str, Act); 14] = [
    ("silu", Act::Silu),
    ("swish", Act::Silu),
    ("gelu", Act::Gelu),
    ("gelu_python", Act::Gelu),
    ("gelu_pytorch_tanh", Act::GeluTanh),
    ("gelu_new", Act::GeluTanh),
    ("gelu_fast", Act::GeluTanh),
    ("gelu_tanh", Act::GeluTanh),
    ("gelu_python_tanh", Act::GeluTanh),
    ("quick_gelu", Act::QuickGelu),
    ("relu", Act::Relu),
    ("relu2", Act::Relu2),
    ("sigmoid", Act::Sigmoid),
    ("linear", Act::Identity),
];

/// The activation with this name in configurations.
pub fn act(word: &str) -> Option<Act> {
    ACTIVATIONS.iter().find(|(known, _)| *known == word).map(|(_, act)| *act)
}

/// The names of all activations in configurations, for an error.
pub(super) fn act_words() -> String {
    let words: Vec<String> = ACTIVATIONS.iter().map(|(word, _)| format!("'{word}'")).collect();
    words.join(", ")
}

/// The name in configurations of an activation, if it has one.
fn act_word(act: Act) -> Option<&'static str> {
    ACTIVATIONS.iter().find(|(_, known)| *known == act).map(|(word, _)| *word)
}

/// The norms of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Norms {
    /// Their positions.
    #[serde(rename = "norms")]
    pub positions: Vec<NormPosition>,
    /// What each norm computes, and its epsilon.
    #[serde(flatten)]
    pub norm: NormFacts,
    /// The epsilon of the norms on outputs, if it is another one.
    pub after_epsilon: Option<f32>,
}

impl Norms {
    /// The norm at a position.
    pub fn at(&self, position: NormPosition) -> NormFacts {
        let own = match position {
            NormPosition::AfterMixer | NormPosition::AfterFfn => self.after_epsilon,
            NormPosition::BeforeMixer
            | NormPosition::BeforeFfn
            | NormPosition::AfterMixerResidual
            | NormPosition::AfterFfnResidual
            | NormPosition::AfterDense
            | NormPosition::BeforeExperts
            | NormPosition::AfterExperts
            | NormPosition::BeforeBlock => None,
        };
        NormFacts { epsilon: own.unwrap_or(self.norm.epsilon), ..self.norm }
    }
}

/// The final norm and the head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Head {
    /// The final norm.
    #[serde(rename = "head_norm")]
    pub norm: NormFacts,
    /// Whether the embedding table is also the head.
    pub tied: bool,
    /// Whether the head has a bias.
    #[serde(rename = "head_bias")]
    pub bias: bool,
    /// The factor that logits are multiplied by.
    #[serde(rename = "logit_scale")]
    pub scale: Option<f32>,
    /// The number that logits are divided by.
    #[serde(rename = "logit_divisor")]
    pub divisor: Option<f32>,
    /// The softcap of logits.
    #[serde(rename = "logit_softcap")]
    pub softcap: Option<f32>,
}

impl NormPosition {
    /// The name of the position in names of weights.
    pub fn name(self) -> &'static str {
        match self {
            NormPosition::BeforeMixer => "before_mixer",
            NormPosition::AfterMixer => "after_mixer",
            NormPosition::BeforeFfn => "before_ffn",
            NormPosition::AfterFfn => "after_ffn",
            NormPosition::AfterMixerResidual => "after_mixer_residual",
            NormPosition::AfterFfnResidual => "after_ffn_residual",
            NormPosition::AfterDense => "after_dense",
            NormPosition::BeforeExperts => "before_experts",
            NormPosition::AfterExperts => "after_experts",
            NormPosition::BeforeBlock => "before_block",
        }
    }
}

fn router_facts<S: Serializer>(router: &Router, to: S) -> Result<S::Ok, S::Error> {
    let Router { score, used, normalized, groups, factor, near } = router;
    let mut map = to.serialize_map(None)?;
    map.serialize_entry("experts_used", used)?;
    map.serialize_entry("router_score", score.name())?;
    map.serialize_entry("router_normalized", normalized)?;
    map.serialize_entry("router_groups", &groups.map(|groups| [groups.used, groups.count]))?;
    if let Some(groups) = groups.filter(|groups| groups.best != 2) {
        map.serialize_entry("router_groups_by", &groups.best)?;
    }
    map.serialize_entry("router_factor", factor)?;
    if let Some(near) = near {
        map.serialize_entry("router_near", near)?;
    }
    map.end()
}

fn gate_facts<S: Serializer>(gate: &GateRule, to: S) -> Result<S::Ok, S::Error> {
    let GateRule { act, limit, offset } = gate;
    let mut map = to.serialize_map(None)?;
    map.serialize_entry("act", act.name())?;
    match limit {
        None => {}
        Some(GateLimit::Gate(bound)) => map.serialize_entry("gate_limit", bound)?,
        Some(GateLimit::Activated(bound)) => map.serialize_entry("activated_gate_limit", bound)?,
    }
    if let Some(offset) = offset {
        map.serialize_entry("gate_offset", offset)?;
    }
    map.end()
}

fn limit_number<S: Serializer>(limit: &Option<GateLimit>, to: S) -> Result<S::Ok, S::Error> {
    limit.map(GateLimit::bound).serialize(to)
}

fn temperature_text<S: Serializer>(temperature: &Option<Temperature>, to: S) -> Result<S::Ok, S::Error> {
    match temperature {
        None => to.serialize_none(),
        Some(Temperature { beta, every, offset }) => {
            to.collect_str(&format_args!("1 + {beta} ln(1 + floor((position + {offset}) / {every}))"))
        }
    }
}

fn act_name<S: Serializer>(act: &Act, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(act.name())
}

fn pairing_name<S: Serializer>(pairing: &Pairing, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(pairing.name())
}

fn pooling_name<S: Serializer>(how: &Pooling, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(how.name())
}

fn span_text<S: Serializer>(span: &Span, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(span)
}
