//! Facts: the parameters that a graph is built from, one entry per layer,
//! independent of files.

use girih_graph::{Act, Pairing, Pooling, Span};

use super::schema::{MixerKind, NormKind, NormPosition};

/// The parameters of a model; equal for every container of the same model.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The architecture's name.
    pub name: String,
    /// Sizes of the whole model.
    pub sizes: ModelSizes,
    /// The embedding.
    pub embed: EmbedFacts,
    /// One entry per layer.
    pub layers: Vec<LayerFacts>,
    /// The final norm and the head; `None` for encoders, whose rows see later rows and predict
    /// no next token.
    pub head: Option<Head>,
    /// How the rows of a text become one vector; `None` if the model defines no such vector.
    pub pooling: Option<PoolingFacts>,
}

impl Facts {
    /// Whether the model is an encoder: rows of a text in, hidden states or one vector out.
    pub fn is_encoder(&self) -> bool {
        self.head.is_none()
    }
}

/// Sizes of a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSizes {
    /// The hidden size.
    pub width: usize,
    /// The number of rows of the embedding table.
    pub vocabulary: usize,
    /// The number of positions that the model was trained for.
    pub context: usize,
}

/// The embedding: the sum of a row of each table, normalized if there is a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedFacts {
    /// The factor that the rows of tokens are multiplied by.
    pub scale: Option<f32>,
    /// The number of token types, if there is a table of them.
    pub token_types: Option<usize>,
    /// The number of rows of the table of positions, if there is one.
    pub positions: Option<usize>,
    /// The norm of the sum.
    pub norm: Option<NormFacts>,
}

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormFacts {
    /// What it computes.
    pub kind: NormKind,
    /// The epsilon that is added to the mean square or to the variance.
    pub epsilon: f32,
}

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolingFacts {
    /// Which rows the vector is made of.
    pub how: Pooling,
    /// Whether the vector is divided by its length. The graph leaves that to the caller.
    pub normalized: bool,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFacts {
    /// The mixer.
    pub mixer: Mixer,
    /// The feed-forward part.
    pub ffn: Ffn,
    /// The norms.
    pub norms: Norms,
}

/// The part of a layer that combines values of several positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention.
    Attend(AttentionFacts),
    /// A gated short convolution: `out(c(x) · conv(b(x) · x(x)))` of four projections.
    ShortConv(ShortConvFacts),
}

impl Mixer {
    /// Its kind.
    pub fn kind(&self) -> MixerKind {
        match self {
            Mixer::Attend(_) => MixerKind::Attend,
            Mixer::ShortConv(_) => MixerKind::Conv,
        }
    }

    /// Attention, if it is that.
    pub fn attention(&self) -> Option<&AttentionFacts> {
        match self {
            Mixer::Attend(attend) => Some(attend),
            Mixer::ShortConv(_) => None,
        }
    }
}

/// The short convolution of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvFacts {
    /// The number of rows that a row is made of, its own included.
    pub taps: usize,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionFacts {
    /// The number of query heads.
    pub heads: usize,
    /// The number of KV heads; divides `heads`.
    pub kv_heads: usize,
    /// The size of a head.
    pub head_size: usize,
    /// The positions that a row attends to.
    pub span: Span,
    /// Rotary position embedding, if queries and keys are rotated.
    pub rope: Option<Rope>,
    /// The epsilon of the norms of query and key heads; `None` without these norms.
    pub qk_norm: Option<f32>,
    /// The projections that have a bias.
    pub biases: Biases,
    /// The factor that attention scores are multiplied by.
    pub scale: f32,
    /// The softcap of scores.
    pub softcap: Option<f32>,
}

/// The projections of attention that have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names suffice
pub struct Biases {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub o: bool,
}

/// Rotary position embedding of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The kind of layer, which is also the name of the weight of its frequencies.
    pub name: &'static str,
    /// The components that form a pair.
    pub pairing: Pairing,
    /// The base of the frequencies.
    pub base: f32,
    /// The divisor of each frequency; empty without scaling.
    pub factors: Vec<f32>,
}

/// The part of a layer that processes each position separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated {
        /// The inner size.
        size: usize,
        /// The activation of the gate.
        act: Act,
        /// Whether gate, up and down have biases.
        biases: [bool; 3],
    },
    /// `down(act(up(x)))`.
    Plain {
        /// The inner size.
        size: usize,
        /// The activation.
        act: Act,
        /// Whether up and down have biases.
        biases: [bool; 2],
    },
}

impl Ffn {
    /// The inner size.
    pub fn size(&self) -> usize {
        match self {
            Ffn::Gated { size, .. } | Ffn::Plain { size, .. } => *size,
        }
    }

    /// The activation.
    pub fn act(&self) -> Act {
        match self {
            Ffn::Gated { act, .. } | Ffn::Plain { act, .. } => *act,
        }
    }

    /// Whether its matmuls have biases, in the order in which they run.
    pub fn biases(&self) -> &[bool] {
        match self {
            Ffn::Gated { biases, .. } => biases,
            Ffn::Plain { biases, .. } => biases,
        }
    }
}

/// The norms of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Norms {
    /// Their positions.
    pub positions: Vec<NormPosition>,
    /// What each norm computes, and its epsilon.
    pub norm: NormFacts,
}

/// The final norm and the head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The final norm.
    pub norm: NormFacts,
    /// Whether the embedding table is also the head.
    pub tied: bool,
    /// The softcap of logits.
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
        }
    }
}
