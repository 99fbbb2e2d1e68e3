//! Facts: everything a graph is built from, with no pattern and no file left.

use girih_graph::{Act, Pairing, Span};

use super::schema::Place;

/// A model, described: equal for every container of the same model.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The architecture's name.
    pub name: String,
    /// Extents of the whole model.
    pub sizes: Sizes,
    /// The embedding.
    pub embed: Embed,
    /// One entry per layer.
    pub layers: Vec<Layer>,
    /// What follows the layers.
    pub head: Head,
}

/// Extents of a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The hidden size.
    pub width: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Positions that the model was made for.
    pub context: usize,
}

/// The embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// What embeddings are multiplied with.
    pub scale: Option<f32>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// What mixes positions.
    pub mixer: Mixer,
    /// What works on each position alone.
    pub ffn: Ffn,
    /// Where it normalises.
    pub norms: Norms,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention.
    Attend(Attend),
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Components of a head.
    pub head_size: usize,
    /// How far back a row sees.
    pub span: Span,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Whether queries and keys are normalised head by head, and the number
    /// added to the mean square.
    pub qk_norm: Option<f32>,
    /// Which projections have one.
    pub biases: Biases,
    /// What scores are multiplied with.
    pub scale: f32,
    /// The soft cap of scores.
    pub softcap: Option<f32>,
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub struct Biases {
    pub q: bool,
    pub k: bool,
    pub v: bool,
    pub o: bool,
}

/// Rotary position embedding of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The kind of layer it serves: the name of the weight of its frequencies.
    pub name: &'static str,
    /// Which components form a pair.
    pub pairing: Pairing,
    /// The base of the frequencies.
    pub base: f32,
    /// What each frequency is divided by; empty where by nothing.
    pub factors: Vec<f32>,
}

/// What works on each position alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated {
        /// The width inside.
        size: usize,
        /// The activation of the gate.
        act: Act,
        /// Whether gate, up and down have biases.
        biases: [bool; 3],
    },
}

/// Where a layer normalises.
#[derive(Clone, Debug, PartialEq)]
pub struct Norms {
    /// The places.
    pub places: Vec<Place>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// What follows the layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Added to the mean square of the last norm.
    pub epsilon: f32,
    /// Whether the embedding table is the head, too.
    pub tied: bool,
    /// The soft cap of logits.
    pub softcap: Option<f32>,
}

impl Place {
    /// The place in names of weights.
    pub fn name(self) -> &'static str {
        match self {
            Place::BeforeMixer => "before_mixer",
            Place::AfterMixer => "after_mixer",
            Place::BeforeFfn => "before_ffn",
            Place::AfterFfn => "after_ffn",
        }
    }
}
