//! The schema of an `archs/*.toml`. Unknown keys are errors, and values are not
//! expressions: the few words that name a computation are variants of enums.

use std::collections::BTreeMap;

use girih_file::fault_in_line;
use girih_tensor::{Error, Result};
use serde::Deserialize;

/// The description of an architecture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arch {
    /// The name in messages. GGUF files that girih writes use the first of
    /// [`Match::gguf`].
    pub name: String,
    /// The models that it describes.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The sizes.
    pub sizes: SizesSchema,
    /// The embedding.
    #[serde(default)]
    pub embed: EmbedSchema,
    /// The norms of a layer, of the embedding and of the head.
    pub norms: NormsSchema,
    /// Attention.
    pub mixer: MixerSchema,
    /// Rotary position embedding, by kind of layer; without any, nothing is rotated. Local layers
    /// without their own have that of full layers.
    #[serde(default)]
    pub rope: BTreeMap<LayerKind, RopeSchema>,
    /// The feed-forward part.
    pub ffn: FfnSchema,
    /// The final norm and the head; encoders have neither.
    pub head: Option<HeadSchema>,
    /// How the rows of a text become one vector; models for other tasks have no such row.
    pub pooling: Option<PoolingSchema>,
    /// Keys of `config.json` or GGUF that exclude a model.
    #[serde(default)]
    pub refuse: BTreeMap<String, ExcludedKey>,
    /// Keys of `config.json` or GGUF that girih does not read, because they change no number of
    /// this architecture's models. `archs/harmless.toml` has those of all models.
    #[serde(default)]
    pub harmless: BTreeMap<String, HarmlessKey>,
    /// Flags of `config.json` that state whether projections have a bias.
    #[serde(default)]
    pub biases: BTreeMap<String, BiasFlag>,
    /// The weights by girih's names, with `{i}` for the layer.
    pub weights: BTreeMap<String, Weight>,
    /// Tensors of containers that girih does not use.
    #[serde(default)]
    pub unused: Unused,
}

/// The models that an architecture describes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// Values of `architectures` in `config.json`.
    #[serde(default)]
    pub hf: Vec<String>,
    /// Values of `model_type` in `config.json`, which must be one of them; without any, it is
    /// not compared.
    #[serde(default)]
    pub hf_model_type: Vec<String>,
    /// Values of `general.architecture` in GGUF.
    #[serde(default)]
    pub gguf: Vec<String>,
    /// Keys of GGUF that must be present and not 0. If one is not, the next architecture of the
    /// same name is tried.
    #[serde(default)]
    pub gguf_if: Vec<String>,
    /// A prefix that the names of weights in safetensors may have, because the model was saved
    /// as a part of another one.
    pub hf_prefix: Option<String>,
    /// Starts of the names of weights in safetensors, each with those that replace it in files of
    /// models that have further parts. The first of these that occurs in the file is used.
    #[serde(default)]
    pub hf_starts: BTreeMap<String, Vec<String>>,
}

/// The fields of the sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizesSchema {
    /// The hidden size.
    pub width: Field,
    /// The number of layers.
    pub layers: Field,
    /// The number of query heads.
    pub heads: Field,
    /// The number of KV heads.
    pub kv_heads: Field,
    /// The size of a head.
    pub head_size: Field,
    /// The inner size of the feed-forward part.
    pub ffn: Field,
    /// The number of positions that the model was trained for.
    pub context: Field,
    /// The window of a local layer, in positions.
    pub window: Option<Field>,
    /// The number of rows of the embedding table, which must be those of the table itself. In
    /// `config.json` it is `vocab_size` by default.
    pub vocabulary: Option<Field>,
}

/// The embedding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbedSchema {
    /// The factor that embeddings are multiplied by.
    pub scale: Option<EmbedScale>,
    /// Whether the row of the token's type is added: weight `embed.token_types`.
    #[serde(default)]
    pub token_types: bool,
    /// The number of rows of that table.
    pub token_type_count: Option<Field>,
    /// Whether the row of the position is added: weight `embed.positions`.
    #[serde(default)]
    pub positions: bool,
    /// Whether the sum is normalized: weight `embed.norm.weight`.
    #[serde(default)]
    pub norm: bool,
}

/// A factor that embeddings are multiplied by.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum EmbedScale {
    /// The square root of the hidden size.
    #[serde(rename = "sqrt(width)")]
    SqrtWidth,
}

/// The norms of a layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormsSchema {
    /// Their positions.
    #[serde(rename = "places")]
    pub positions: Vec<NormPosition>,
    /// What they compute.
    #[serde(default)]
    pub kind: NormKind,
    /// The epsilon that is added to the mean square or to the variance.
    pub epsilon: Field,
}

/// What a norm computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Division by the root mean square, then a weight.
    #[default]
    Rms,
    /// Layer norm, with a weight and a bias.
    Layer,
}

/// The position of a norm in a layer; its weight is `layers.{i}.norms.<position>`, and its bias,
/// if the kind has one, `layers.{i}.norms.<position>.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPosition {
    /// On the input of attention.
    BeforeMixer,
    /// On the output of attention, before the residual.
    AfterMixer,
    /// On the input of the feed-forward part.
    BeforeFfn,
    /// On the output of the feed-forward part, before the residual.
    AfterFfn,
    /// On the sum of attention and the residual.
    AfterMixerResidual,
    /// On the sum of the feed-forward part and the residual.
    AfterFfnResidual,
}

/// Attention.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixerSchema {
    /// The kinds of layers, repeated over the layers.
    pub spans: Vec<LayerKind>,
    /// The key under which a model lists the kinds of its layers.
    pub layer_types: Option<LayerTypes>,
    /// The number of taps of the convolution in layers of the kind `conv`.
    pub taps: Option<Field>,
    /// The period n of a model: every n-th layer is full, the others are local.
    pub period: Option<Field>,
    /// Whether query and key heads are normalized.
    #[serde(default)]
    pub qk_norm: bool,
    /// The number whose inverse square root scales the scores; the size of a head
    /// by default.
    pub scale_of: Option<Field>,
    /// The same number for a GGUF without the key, in place of the default.
    pub gguf_scale_of: Option<GgufScaleOf>,
    /// The softcap of scores.
    pub softcap: Option<Field>,
}

/// The number whose inverse square root scales the scores in a GGUF that does not state it.
///
/// It follows llama.cpp (`f_attention_scale` in `src/models/*.cpp`), which recognizes the largest
/// model of an architecture by its number of layers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GgufScaleOf {
    /// The number of all other models.
    pub usual: ScaleOf,
    /// The number of layers of the largest model.
    pub layers: usize,
    /// The number of the largest model.
    pub then: ScaleOf,
}

impl GgufScaleOf {
    /// The number whose inverse square root scales the scores of a model with these sizes.
    pub fn of(&self, layers: usize, width: usize, heads: usize, head_size: usize) -> usize {
        match if layers == self.layers { self.then } else { self.usual } {
            ScaleOf::HeadSize => head_size,
            ScaleOf::WidthPerHead => width / heads,
        }
    }
}

/// A number that scales scores.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum ScaleOf {
    /// The size of a head.
    #[serde(rename = "head_size")]
    HeadSize,
    /// The hidden size, divided by the number of query heads and rounded down.
    #[serde(rename = "width / heads")]
    WidthPerHead,
}

/// The kind of a layer, by the positions that it attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// All earlier positions.
    Full,
    /// The positions of a sliding window.
    Local,
    /// All positions of the text, later ones too: encoders.
    All,
    /// No positions: a short convolution.
    Conv,
}

/// The kind of a mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixerKind {
    /// Attention.
    Attend,
    /// A gated short convolution.
    Conv,
}

impl MixerKind {
    /// What a layer with this mixer has, for errors.
    pub fn name(self) -> &'static str {
        match self {
            MixerKind::Attend => "attention",
            MixerKind::Conv => "a short convolution",
        }
    }
}

impl LayerKind {
    /// The name in descriptions.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Full => "full",
            LayerKind::Local => "local",
            LayerKind::All => "all",
            LayerKind::Conv => "conv",
        }
    }
}

/// A list of the kinds of layers in `config.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTypes {
    /// The key.
    pub hf: String,
    /// The word for a local layer, if the architecture has any.
    pub local: Option<String>,
    /// The word for a full layer.
    pub full: String,
    /// The word for a layer with a short convolution, if the architecture has any. In a GGUF these
    /// are the layers without KV heads.
    pub conv: Option<String>,
    /// The key of the indexes of the full layers, in models without the list; the others have
    /// short convolutions.
    pub hf_full: Option<String>,
}

/// Rotary position embedding of one kind of layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSchema {
    /// The components that form a pair.
    pub pairing: PairingSchema,
    /// The base of the frequencies.
    pub base: Field,
    /// The fields of a scaling of the frequencies.
    pub scaling: Option<Scaling>,
}

/// The components of a head that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairingSchema {
    /// `i` with `i + size/2`.
    Halves,
    /// `2i` with `2i + 1`.
    Neighbours,
}

/// The fields of a scaling of rotary frequencies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Objects of `config.json` with a `rope_type`.
    #[serde(default)]
    pub hf: Names,
    /// The prefix of GGUF's `.type` and `.factor`.
    pub gguf: Option<String>,
    /// The name of a GGUF tensor of one divisor per frequency.
    pub factors: Option<String>,
}

/// The feed-forward part.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FfnSchema {
    /// Its matmuls.
    #[serde(default)]
    pub kind: FfnKind,
    /// The activation, under its name in `config.json`.
    pub act: Field,
    /// Names of a whole feed-forward part that stand for its activation, such as `swiglu`.
    #[serde(default)]
    pub act_names: BTreeMap<String, String>,
    /// How transformers makes the inner size of what `config.json` states; a GGUF has the result.
    pub hf_rounded: Option<RoundedSize>,
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

/// The matmuls of a feed-forward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FfnKind {
    /// `down(act(gate(x)) · up(x))`.
    #[default]
    Gated,
    /// `down(act(up(x)))`.
    Plain,
}

/// The final norm and the head.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSchema {
    /// Whether the embedding table is also the head. If a model does not state it, the head is tied
    /// unless there is a `head.weight` that differs from the table.
    pub tied: Option<Field>,
    /// The softcap of logits.
    pub softcap: Option<Field>,
}

/// How the rows of a text become one vector. A model in safetensors states it in the
/// `modules.json` of sentence-transformers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolingSchema {
    /// A number of GGUF (llama.cpp's `enum llama_pooling_type`); the default is `first`, `last`
    /// or `mean`.
    pub how: Field,
}

/// A key of `config.json` or GGUF that excludes a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ExcludedKey {
    /// It must be absent, null, false or empty; else this is the error.
    Set(String),
    /// It must be absent, null or this value.
    Other(RequiredValue),
    /// It must not be this value.
    Never(ExcludedValue),
    /// It must be stated as null in `config.json`, as transformers takes another value if it is
    /// absent; a GGUF has no such key.
    Null(RequiredNull),
}

/// Null, as the only value that a key may have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredNull {
    /// The error for a model with another value, or without the key.
    pub only_null: String,
}

/// The value that a key may not have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludedValue {
    /// The value.
    pub never: StatedValue,
    /// The error for a model with this value.
    pub why: String,
}

/// The only value that a key may have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredValue {
    /// The value.
    pub unless: StatedValue,
    /// The error for a model with another one.
    pub why: String,
}

/// A number, a string or a bool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum StatedValue {
    /// A bool.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A string.
    Word(String),
}

/// A key that girih does not read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarmlessKey {
    /// The values with which it changes no number; null always counts as absent.
    pub is: HarmlessValues,
    /// The reason.
    pub why: String,
}

/// The values with which a key changes no number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum HarmlessValues {
    /// All of a kind.
    Kind(ValueKind),
    /// These.
    Listed(Vec<StatedValue>),
}

/// A kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// All values, lists and objects too.
    Any,
    /// True or false.
    Flag,
    /// A number.
    Number,
    /// A string.
    Text,
    /// An integer, or a list of integers.
    Ids,
}

/// A flag of `config.json` that states whether projections have a bias.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BiasFlag {
    /// Its value in models that do not state it.
    pub default: bool,
    /// The projections of a layer, such as `mixer.q`.
    pub of: Vec<String>,
}

/// One weight and its names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The name in safetensors.
    pub hf: Option<String>,
    /// The name in GGUF.
    pub gguf: Option<String>,
    /// The transform from safetensors' tensor to girih's.
    pub hf_as: Option<Relayout>,
    /// The transform from GGUF's tensor to girih's.
    pub gguf_as: Option<Relayout>,
    /// The weight's part of safetensors' tensor, if that holds several weights: the index of
    /// the part, and the number of equal parts that the tensor's rows consist of.
    pub hf_part: Option<[usize; 2]>,
    /// The same for GGUF's tensor.
    pub gguf_part: Option<[usize; 2]>,
    /// Whether models may omit it.
    #[serde(default)]
    pub optional: bool,
    /// The mixer of the layers that have it; all have it by default.
    pub mixer: Option<MixerKind>,
}

/// A transform from a stored tensor to girih's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relayout {
    /// Adds one to every value, for norms that are stored as w − 1.
    AddOne,
    /// Undoes the interleaving of the two halves of each query head's rows, which
    /// llama.cpp's converter applies for Llama.
    UnpermuteHeads,
    /// The same for key heads.
    UnpermuteKvHeads,
    /// Exchanges the columns with all other dimensions, for convolutions.
    Transposed,
}

/// Tensors that girih does not use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// Names in safetensors; a `*` at the end stands for any rest.
    #[serde(default)]
    pub hf: Vec<String>,
    /// Names in GGUF, in the same way.
    #[serde(default)]
    pub gguf: Vec<String>,
}

/// The source of one parameter: paths in `config.json` (those that exist must have the same
/// value), a key of GGUF, and a default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Paths in `config.json`, with dots between the levels.
    #[serde(default)]
    pub hf: Names,
    /// Whether the paths may have several values; the first one counts.
    #[serde(default)]
    pub hf_first: bool,
    /// A key of GGUF.
    pub gguf: Option<String>,
    /// Further GGUF keys that must have the same value if they exist, and are written for other
    /// programs.
    #[serde(default)]
    pub gguf_also: Vec<String>,
    /// Whether llama.cpp ignores the GGUF key. `quantize` then warns when it writes the key.
    #[serde(default)]
    pub llama_cpp_ignores: bool,
    /// The default.
    pub default: Option<DefaultValue>,
    /// The default in `config.json`, if it is another one.
    pub hf_default: Option<DefaultValue>,
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

/// The default of a parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum DefaultValue {
    /// A bool.
    Flag(bool),
    /// A number.
    Number(f64),
    /// Another size, or a string.
    Word(String),
}

impl Arch {
    /// The fields of its parameters, each with the parameter's name.
    pub fn fields(&self) -> Vec<(String, &Field)> {
        let (sizes, mixer, embed, head) = (&self.sizes, &self.mixer, &self.embed, self.head.as_ref());
        let rounded = self.ffn.hf_rounded.as_ref();
        let fixed = [
            ("sizes.width", Some(&sizes.width)),
            ("sizes.layers", Some(&sizes.layers)),
            ("sizes.heads", Some(&sizes.heads)),
            ("sizes.kv_heads", Some(&sizes.kv_heads)),
            ("sizes.head_size", Some(&sizes.head_size)),
            ("sizes.ffn", Some(&sizes.ffn)),
            ("sizes.context", Some(&sizes.context)),
            ("sizes.window", sizes.window.as_ref()),
            ("sizes.vocabulary", sizes.vocabulary.as_ref()),
            ("embed.token_type_count", embed.token_type_count.as_ref()),
            ("norms.epsilon", Some(&self.norms.epsilon)),
            ("mixer.period", mixer.period.as_ref()),
            ("mixer.taps", mixer.taps.as_ref()),
            ("mixer.scale_of", mixer.scale_of.as_ref()),
            ("mixer.softcap", mixer.softcap.as_ref()),
            ("ffn.act", Some(&self.ffn.act)),
            ("ffn.hf_rounded.if", rounded.map(|rounded| &rounded.condition)),
            ("ffn.hf_rounded.times", rounded.map(|rounded| &rounded.times)),
            ("ffn.hf_rounded.multiple", rounded.map(|rounded| &rounded.multiple)),
            ("head.tied", head.and_then(|head| head.tied.as_ref())),
            ("head.softcap", head.and_then(|head| head.softcap.as_ref())),
            ("pooling.how", self.pooling.as_ref().map(|pooling| &pooling.how)),
        ];
        let fixed = fixed.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field?)));
        let bases = self.rope.iter().map(|(kind, rope)| (format!("rope.{}.base", kind.name()), &rope.base));
        fixed.chain(bases).collect()
    }

    /// The paths of the objects in `config.json` that scale rotary frequencies.
    pub fn scaling_paths(&self) -> impl Iterator<Item = &str> {
        self.rope.values().filter_map(|rope| rope.scaling.as_ref()).flat_map(|scaling| scaling.hf.iter())
    }

    /// The field of the number of rows of the embedding table.
    pub fn vocabulary(&self) -> Field {
        let mut field = self.sizes.vocabulary.clone().unwrap_or_default();
        if field.hf.iter().next().is_none() {
            field.hf = Names::One("vocab_size".to_owned());
        }
        field
    }
}

/// Parses the description of an architecture.
///
/// # Errors
/// When the text is not valid TOML, or does not follow the schema.
pub fn parse(text: &str) -> Result<Arch> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let fault = fault_in_line(text, error.span().map(|span| span.start), error.message());
        Error::new(format!("is not a valid architecture: {fault}"))
    })
}
