//! The types of an `archs/*.toml`: what may be said of an architecture, and
//! nothing else. Unknown keys are errors, and no value is an expression: the
//! few words that stand for a computation are variants of closed enums.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};
use serde::Deserialize;

/// Everything that girih knows about one architecture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arch {
    /// The name in logs; for GGUF files that girih writes, the first of
    /// [`Match::gguf`] is used.
    pub name: String,
    /// Which models it describes.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Extents.
    pub sizes: Sizes,
    /// The embedding.
    #[serde(default)]
    pub embed: Embed,
    /// The norms of a layer and before the head.
    pub norms: Norms,
    /// Attention.
    pub mixer: Mixer,
    /// Rotary position embedding, by kind of layer.
    pub rope: BTreeMap<SpanKind, Rope>,
    /// The feed-forward part.
    pub ffn: Ffn,
    /// What follows the layers.
    pub head: Head,
    /// Keys of `config.json` that must be absent, null, false or empty, and
    /// the sentence for a model in which they are not.
    #[serde(default)]
    pub refuse: BTreeMap<String, String>,
    /// girih's names of weights, `{i}` standing for the layer.
    pub weights: BTreeMap<String, Weight>,
    /// Tensors that containers hold and nothing needs.
    #[serde(default)]
    pub unused: Unused,
}

/// Which models an architecture describes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// Values of `architectures` in `config.json`.
    #[serde(default)]
    pub hf: Vec<String>,
    /// Values of `general.architecture` in GGUF.
    #[serde(default)]
    pub gguf: Vec<String>,
}

/// Where extents are found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// The hidden size.
    pub width: Field,
    /// The number of layers.
    pub layers: Field,
    /// Query heads.
    pub heads: Field,
    /// Key and value heads.
    pub kv_heads: Field,
    /// Components of a head.
    pub head_size: Field,
    /// The width inside the feed-forward part.
    pub ffn: Field,
    /// Positions that the model was made for.
    pub context: Field,
    /// Positions that a local layer sees.
    pub window: Option<Field>,
    /// Rows of the embedding table: read from the table itself, and written
    /// into GGUF files under this key.
    pub vocabulary: Option<Field>,
}

/// The embedding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// What embeddings are multiplied with.
    pub scale: Option<EmbedScale>,
}

/// What embeddings may be multiplied with.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum EmbedScale {
    /// The square root of the hidden size.
    #[serde(rename = "sqrt(width)")]
    SqrtWidth,
}

/// The norms of a layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norms {
    /// Where they stand.
    pub places: Vec<Place>,
    /// Added to the mean square.
    pub epsilon: Field,
}

/// Where a norm stands in a layer; its weight is `layers.{i}.norms.<place>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On what attention reads.
    BeforeMixer,
    /// On what attention adds.
    AfterMixer,
    /// On what the feed-forward part reads.
    BeforeFfn,
    /// On what the feed-forward part adds.
    AfterFfn,
}

/// Attention.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixer {
    /// The kinds of layers, repeated until there are enough.
    pub spans: Vec<SpanKind>,
    /// Where a model lists the kinds itself.
    pub layer_types: Option<LayerTypes>,
    /// Where a model says that every n-th layer is full, the others local.
    pub period: Option<Field>,
    /// Whether queries and keys are normalised, head by head.
    #[serde(default)]
    pub qk_norm: bool,
    /// The number under whose inverse square root scores are taken; the size
    /// of a head if not stated.
    pub scale_of: Option<Field>,
    /// The soft cap of scores.
    pub softcap: Option<Field>,
}

/// How far back a kind of layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// Everything.
    Full,
    /// A window.
    Local,
}

/// A list of the kinds of layers in `config.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTypes {
    /// The key.
    pub hf: String,
    /// The word for a local layer.
    pub local: String,
    /// The word for a full layer.
    pub full: String,
}

/// Rotary position embedding of one kind of layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Which components form a pair.
    pub pairing: Pairing,
    /// The base of the frequencies.
    pub base: Field,
    /// Where a scaling of the frequencies is described.
    pub scaling: Option<Scaling>,
}

/// Which components of a head a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// `i` with `i + size/2`.
    Halves,
    /// `2i` with `2i + 1`.
    Neighbours,
}

/// Where a scaling of rotary frequencies is described.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Objects of `config.json` with a `rope_type`.
    #[serde(default)]
    pub hf: Names,
    /// The prefix of GGUF's `.type` and `.factor`.
    pub gguf: Option<String>,
    /// A GGUF tensor of one divisor per frequency.
    pub factors: Option<String>,
}

/// The feed-forward part: `down(act(gate(x)) · up(x))`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ffn {
    /// The activation, under its name in `config.json`.
    pub act: Field,
}

/// What follows the layers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Whether the embedding table is the head, too. Where a model does not
    /// say, the absence of `head.weight` does.
    pub tied: Option<Field>,
    /// The soft cap of logits.
    pub softcap: Option<Field>,
}

/// One weight and its names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The name in safetensors.
    pub hf: Option<String>,
    /// The name in GGUF.
    pub gguf: Option<String>,
    /// What makes safetensors' tensor ours.
    pub hf_as: Option<Relayout>,
    /// What makes GGUF's tensor ours.
    pub gguf_as: Option<Relayout>,
    /// Whether models may lack it.
    #[serde(default)]
    pub optional: bool,
}

/// What turns a stored tensor into ours: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relayout {
    /// Every value plus one: norms that are stored as their distance from one.
    AddOne,
    /// Rows of query heads, stored with the two halves of each head
    /// interleaved (llama.cpp's converter does so for Llama), put back.
    UnpermuteHeads,
    /// The same for key heads.
    UnpermuteKvHeads,
}

/// Tensors that nothing needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// Names in safetensors.
    #[serde(default)]
    pub hf: Vec<String>,
    /// Names in GGUF.
    #[serde(default)]
    pub gguf: Vec<String>,
}

/// Where one fact is found: paths in `config.json` (the first that is there
/// and not null counts), a key of GGUF, and what holds in their absence.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Paths in `config.json`, dots between the levels.
    #[serde(default)]
    pub hf: Names,
    /// A key of GGUF.
    pub gguf: Option<String>,
    /// Further keys that GGUF files get with the same value, for other
    /// programs; they are not read.
    #[serde(default)]
    pub gguf_also: Vec<String>,
    /// What holds where a model does not say.
    pub default: Option<DefaultValue>,
}

/// One name, or several in order of preference.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Default for Names {
    fn default() -> Names {
        Names::Many(Vec::new())
    }
}

impl Names {
    /// The names in order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Many(names) => names,
        };
        names.iter().map(String::as_str)
    }
}

/// What holds where a model does not say.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum DefaultValue {
    /// A number.
    Number(f64),
    /// Another size, or a word.
    Word(String),
}

/// Reads an architecture.
///
/// # Errors
/// When the text is no TOML, or says something that the schema does not know.
pub fn parse(text: &str) -> Result<Arch> {
    toml::from_str(text).map_err(|error| Error::new(format!("is no description of an architecture: {error}")))
}
