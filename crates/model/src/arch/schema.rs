//! The schema of an `archs/*.toml`. Unknown keys are errors, and values are not
//! expressions: the few words that name a computation are variants of enums.

use std::collections::BTreeMap;

use girih_file::fault_in_line;
use girih_tensor::{Error, Result};
use serde::Deserialize;

pub use super::attend_schema::{
    IndexerSchema, LatentSchema, LayerBases, OutputGateAct, QkNorm, TemperatureSchema, ValuesSchema,
};
use super::based_on::{DENSE_KIND, describe_layers, merged, printed};
pub use super::block_schema::{BlockSchema, BlocksSchema};
pub use super::delta_schema::{DeltaGateAct, DeltaPart, DeltaRuleSchema};
pub use super::draft_schema::{AssistantSchema, DraftSchema};
pub use super::ffn_schema::{
    BesideSchema, DenseLayersSchema, DenseSchema, ExpertsSchema, FfnKind, FfnSchema, LimitSchema,
    RoundedSize, SharedExpertSchema,
};
pub use super::field::{DefaultValue, Field, LayerOverrides, Names};
pub use super::key_rules::{
    ExcludedKey, ExcludedValue, HarmlessKey, HarmlessValues, ListOf, RequiredNull, RequiredValue,
    StatedValue, ValueKind,
};
pub use super::layers_schema::{GgufKinds, IndexedKind, KindOrList, LayersSchema, ListedKinds};
pub use super::norm_kind::NormKind;
pub use super::q4nx_schema::{Q4nxCodes, Q4nxSchema};
pub use super::rope_schema::{AxesSchema, AxisPairs, PairingSchema};
pub use super::ssm_schema::{SsmPart, SsmSchema};
pub use super::streams_schema::StreamsSchema;
pub use super::tower_schema::{
    AnySize, CellRule, CropTexts, CropsSchema, FrameSize, ImageLayers, ImagePromptSchema, ImageTexts,
    PatchOrder, PatchPositions, PictureFilter, PixelNorm, PixelsSchema, ProjectorSchema, TileTexts,
    TilesSchema, TowerSchema, VideoSchema, VideoTexts,
};
pub use super::weight_schema::{
    EXPERT, ExpertsPart, LatentPart, OtherTensor, PlanesPart, QkvPart, Relayout, TensorPart, Unused, Weight,
};
pub use super::written_schema::{WrittenKey, WrittenSize, WrittenValue};

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
    /// The norms of the embedding and of the head.
    pub norms: NormsSchema,
    /// The kind of each layer.
    #[serde(default)]
    pub layers: LayersSchema,
    /// The descriptions of the kinds of layers. In a file, `[mixer]`, `[ffn]`, `[norms]` and `[residual]` describe all
    /// kinds, and a `[layer.KIND]` states what differs.
    pub layer: BTreeMap<String, LayerSchema>,
    /// Tables of rotary position embedding by name, which layers choose by `mixer.rope`.
    #[serde(default)]
    pub rope: BTreeMap<String, RopeSchema>,
    /// The final norm and the head; encoders have neither.
    pub head: Option<HeadSchema>,
    /// How the rows of a text become one vector; models for other tasks have no such row.
    pub pooling: Option<PoolingSchema>,
    /// The layer that predicts the token after the next one, if models have one.
    pub draft: Option<DraftSchema>,
    /// What models read of the model that they draft for, if they are assistants.
    pub assistant: Option<AssistantSchema>,
    /// The residual streams of models that have several.
    pub streams: Option<StreamsSchema>,
    /// What the model reads and makes, if it is an image tower.
    pub tower: Option<TowerSchema>,
    /// The name of the shipped description of the tower that makes rows of images for the model. If a GGUF may be that of models
    /// with several towers, the projector file says which one; the first is that of a folder.
    pub image_tower: Option<Names>,
    /// The number of first layers to whose outputs the tower's further rows are added.
    pub image_layers: Option<ImageLayers>,
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
    /// Keys of GGUF that girih writes and does not read.
    #[serde(default)]
    pub written: BTreeMap<String, WrittenKey>,
    /// What FastFlowLM's converter makes of its models, if it knows them.
    pub q4nx: Option<Q4nxSchema>,
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
    /// Values of `text_config.model_type` in `config.json`, which must be one of them if it is stated.
    #[serde(default)]
    pub hf_text_model_type: Vec<String>,
    /// Values of `general.architecture` in GGUF.
    #[serde(default)]
    pub gguf: Vec<String>,
    /// Values of `clip.projector_type` or `clip.vision.projector_type` in projector files, if it is an image tower.
    #[serde(default)]
    pub projector: Vec<String>,
    /// Keys of GGUF that must be present and not 0. If one is not, the next architecture of the
    /// same name is tried.
    #[serde(default)]
    pub gguf_if: Vec<String>,
    /// Keys that `config.json` must have, in the same way.
    #[serde(default)]
    pub hf_if: Vec<String>,
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
    /// The number of layers that draft tokens, which the model does not run. A GGUF counts them among the layers, as
    /// the last ones.
    pub drafting: Option<Field>,
    /// The number of positions that the model was trained for.
    pub context: Field,
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
    /// Whether the model multiplies them at all.
    pub scale_if: Option<Field>,
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
    /// What each layer has of embeddings of its own, if the model has them.
    pub per_layer: Option<PerLayerSchema>,
}

/// Embeddings of each layer: the sum of a row of a table of the layer and a projection of the model's embedding.
/// Their part of the layer has the weights `layers.{i}.input.…`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerSchema {
    /// Their size. Without a value, or with 0, there are none.
    pub size: Field,
    /// The number of rows of each table.
    pub vocabulary: Option<Field>,
    /// Whether tokens beyond these rows have the first one.
    #[serde(default)]
    pub first_beyond: bool,
}

/// A factor that embeddings are multiplied by.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum EmbedScale {
    /// One that follows from the sizes.
    Derived(DerivedScale),
    /// One that the model states.
    Stated(Field),
}

/// A factor that follows from the sizes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum DerivedScale {
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
    /// Positions that only some models have in addition.
    pub further: Option<FurtherNorms>,
    /// What they compute.
    #[serde(default)]
    pub kind: NormKind,
    /// The epsilon that is added to the mean square or to the variance.
    pub epsilon: Field,
    /// The epsilon of the norms `after_mixer` and `after_ffn`, if it is another one.
    pub after_epsilon: Option<Field>,
}

/// Positions of norms that only some models have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FurtherNorms {
    /// Whether the model has them. A GGUF without a key for it says so by the weight of the first one.
    #[serde(rename = "if")]
    pub condition: Field,
    /// The positions.
    #[serde(rename = "places")]
    pub positions: Vec<NormPosition>,
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
    /// On the output of the dense part, before that of the experts beside it is added.
    AfterDense,
    /// On the input of the experts beside a dense part.
    BeforeExperts,
    /// On the output of these experts.
    AfterExperts,
    /// On the input of a block, which is twice as wide as other rows.
    BeforeBlock,
}

/// One kind of layers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSchema {
    /// The part that combines values of several positions.
    pub mixer: MixerSchema,
    /// The feed-forward part.
    pub ffn: FfnSchema,
    /// The norms.
    pub norms: NormsSchema,
    /// How the parts are added to the residual.
    #[serde(default)]
    pub residual: ResidualSchema,
    /// The block that its attention and its feed-forward part are, if they are one.
    pub block: Option<BlockSchema>,
}

/// How the parts of a layer are added to the residual.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualSchema {
    /// Whether the mixer and the feed-forward part read the same rows, and both results are added to them; by
    /// default, the feed-forward part reads what the mixer's sum has become. Without a norm of its own, it
    /// reads the mixer's normalized rows.
    pub parallel: Option<Field>,
    /// Whether parallel parts share the norm `before_mixer`, so that only other models have `before_ffn`.
    #[serde(default)]
    pub shared_norm: bool,
    /// The factor that the results are multiplied by before they are added.
    pub scale: Option<Field>,
    /// Whether that factor is divided by the square root of the number of layers, as MiniCPM's is.
    #[serde(default)]
    pub scale_over_root_layers: bool,
}

/// The part of a layer that combines values of several positions.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MixerSchema {
    /// Attention.
    Attend(Box<AttendSchema>),
    /// A gated short convolution.
    ShortConv(ShortConvSchema),
    /// The gated delta rule.
    DeltaRule(Box<DeltaRuleSchema>),
    /// Mamba-2.
    Ssm(Box<SsmSchema>),
    /// None: the layer has a feed-forward part only.
    None {},
}

impl MixerSchema {
    /// Mamba-2, if the mixer has it.
    pub fn ssm(&self) -> Option<&SsmSchema> {
        match self {
            MixerSchema::Ssm(ssm) => Some(ssm),
            MixerSchema::Attend(attend) => attend.beside.as_deref(),
            MixerSchema::ShortConv(_) | MixerSchema::DeltaRule(_) | MixerSchema::None {} => None,
        }
    }
}

/// Attention.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttendSchema {
    /// The number of query heads.
    pub heads: Field,
    /// The number of KV heads.
    pub kv_heads: Field,
    /// Whether there is one KV head, whatever `kv_heads` says.
    pub multi_query: Option<Field>,
    /// The number of KV heads for each one that `kv_heads` says.
    pub kv_heads_times: Option<usize>,
    /// The size of a head.
    pub head_size: Field,
    /// The size of a head's values, if it may be another one.
    pub value_size: Option<Field>,
    /// The factor of values.
    pub value_factor: Option<Field>,
    /// The positions that a row attends to.
    #[serde(default)]
    pub span: SpanSchema,
    /// Whether the model has the window or the chunk of `span` at all.
    pub span_if: Option<Field>,
    /// The name of the table by which queries and keys are rotated; without one, they are not.
    pub rope: Option<String>,
    /// The bases of the layers, instead of the table's.
    pub rope_bases: Option<LayerBases>,
    /// If set, only models in whose `config.json` this is null rotate queries and keys. In a GGUF, it must be
    /// absent.
    pub rope_if_null: Option<Field>,
    /// If set, only models for which this is `rope` or true rotate queries and keys; null, `nope` and false are none.
    pub rope_if: Option<Field>,
    /// If set, models in whose `config.json` this is null do not rotate.
    pub rope_unless_null: Option<Field>,
    /// The norms of queries and keys, if there are any. They have weights if the description names them.
    pub qk_norm: Option<QkNorm>,
    /// Whether a model has these norms, for descriptions of models with and without; in a GGUF, their weights say so.
    pub qk_norm_if: Option<Field>,
    /// The factor that queries are multiplied by.
    pub query_factor: Option<Field>,
    /// The number whose inverse square root scales the scores; the size of a head
    /// by default.
    pub scale_of: Option<Field>,
    /// The same number for a GGUF without the key, in place of the default.
    pub gguf_scale_of: Option<GgufScaleOf>,
    /// The factor of the scores itself, for models that state it.
    pub scale: Option<Field>,
    /// The softcap of scores.
    pub softcap: Option<Field>,
    /// The activation of the gate of the heads' results. The weight `mixer.gate.weight` has a row for each
    /// head or for each element; without it, there is no gate.
    pub gate: Option<OutputGateAct>,
    /// The source of values, where it is not a projection alone.
    #[serde(default)]
    pub values: ValuesSchema,
    /// Whether a model in `config.json` has this gate, which its weight must confirm.
    pub gate_if: Option<Field>,
    /// How queries are multiplied by position.
    pub temperature: Option<TemperatureSchema>,
    /// The sizes of latent attention, if it is that.
    pub latent: Option<LatentSchema>,
    /// The factor of the input.
    pub input_scale: Option<Field>,
    /// The factor of the output.
    pub output_scale: Option<Field>,
    /// Mamba-2 beside attention; the results of both are added.
    pub beside: Option<Box<SsmSchema>>,
}

/// A gated short convolution.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConvSchema {
    /// The number of taps.
    pub taps: Field,
}

/// The positions that a row attends to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanSchema {
    /// All earlier positions.
    #[default]
    Full,
    /// The same, though the rows of an image attend to each other both ways in other layers.
    Past,
    /// The last positions, of this number. A window of null is none.
    Window(Field),
    /// The positions of the row's chunk of this number. A chunk of null is none.
    Chunk(Field),
    /// All positions of the text, later ones too: encoders.
    All,
    /// The patches of the row's window of the image: `tower.window`.
    Mutual,
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

/// A table of rotary position embedding.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSchema {
    /// The components that form a pair.
    pub pairing: PairingSchema,
    /// A flag of `config.json`: where it is false, pairs lie in halves, whatever `pairing` says.
    pub neighbours_if: Option<Field>,
    /// The base of the frequencies.
    pub base: Field,
    /// The number of components of a head that are rotated, the first ones; without one, it follows from the
    /// share.
    pub rotated: Option<Field>,
    /// The share of a head's components that are rotated; without one, all are.
    pub share: Option<Field>,
    /// The fields of a scaling of the frequencies.
    pub scaling: Option<Scaling>,
    /// Whether pairs turn the other way round, so that frequencies are negative.
    #[serde(default)]
    pub is_reversed: bool,
    /// The axes of positions, if there are several.
    pub axes: Option<AxesSchema>,
}

/// The fields of a scaling of rotary frequencies.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Objects of `config.json` with a `rope_type`.
    #[serde(default)]
    pub hf: Names,
    /// The only scheme that models may have. In a GGUF, they must have the tensor of divisors.
    pub only: Option<String>,
    /// The number of positions before the scaling in a `config.json` that states it apart from these objects.
    pub original: Option<Field>,
    /// Whether `dynamic` with an `alpha` raises the base to `base · alpha^(size / (size − 2))` for all texts.
    #[serde(default)]
    pub alpha: bool,
    /// Whether `longrope` states the factor of the rotated components by the length of the text: `short_mscale` and
    /// `long_mscale`. Other schemes of such models have them, too, and are refused.
    #[serde(default)]
    pub mscales: bool,
    /// Further words for `default` in `config.json`.
    #[serde(default)]
    pub default_words: Vec<String>,
    /// Further words for `longrope` in `config.json`.
    #[serde(default)]
    pub longrope_words: Vec<String>,
    /// Whether `config.json` must state a scaling, because transformers assumes one where none is stated.
    #[serde(default)]
    pub stated: bool,
    /// The prefix of GGUF's `.type`, `.factor` and the keys of YaRN.
    pub gguf: Option<String>,
    /// Whether the ends of YaRN's ramp are no whole pairs in a GGUF, which cannot state it.
    #[serde(default)]
    pub gguf_open_ramp: bool,
    /// Whether YaRN's scale of all components multiplies scores twice, as in DeepSeek's models.
    #[serde(default)]
    pub scales_scores: bool,
    /// The name of GGUF's tensor of the divisors of longrope for short texts.
    pub short: Option<String>,
    /// The same for long texts.
    pub long: Option<String>,
    /// The name of a GGUF tensor of one divisor per frequency.
    pub factors: Option<String>,
}

/// The final norm and the head.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSchema {
    /// Whether the embedding table is also the head. If a model does not state it, the head is tied
    /// unless there is a `head.weight` that differs from the table.
    pub tied: Option<Field>,
    /// The factor that logits are multiplied by.
    pub scale: Option<Field>,
    /// The number that logits are divided by.
    pub divisor: Option<Field>,
    /// Whether it is the width, divided by what `divisor` states, as MiniCPM's is.
    #[serde(default)]
    pub divisor_of_width: bool,
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

/// A flag of `config.json` that states whether projections have a bias.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BiasFlag {
    /// Its value in models that do not state it.
    pub default: bool,
    /// The projections of a layer, such as `mixer.q`, or `head`.
    pub of: Vec<String>,
}

impl NormPosition {
    /// Every position.
    pub const ALL: [NormPosition; 10] = [
        NormPosition::BeforeMixer,
        NormPosition::AfterMixer,
        NormPosition::BeforeFfn,
        NormPosition::AfterFfn,
        NormPosition::AfterMixerResidual,
        NormPosition::AfterFfnResidual,
        NormPosition::AfterDense,
        NormPosition::BeforeExperts,
        NormPosition::AfterExperts,
        NormPosition::BeforeBlock,
    ];
}

impl Arch {
    /// The description of a kind of layers.
    ///
    /// # Errors
    /// When there is none.
    pub fn layer(&self, kind: &str) -> Result<&LayerSchema> {
        let missing = || Error::new(format!("architecture {}: [layer.{kind}] is missing", self.name));
        self.layer.get(kind).ok_or_else(missing)
    }

    /// The kinds, repeated over the layers.
    pub fn pattern(&self) -> Vec<&str> {
        let kinds = &self.layers.kinds;
        let only = kinds.is_empty() && self.layer.len() == 1;
        if only {
            self.layer.keys().map(String::as_str).collect()
        } else {
            kinds.iter().map(String::as_str).collect()
        }
    }

    /// Checks what the types of the schema do not.
    fn check(&self) -> Result<()> {
        let LayersSchema {
            kinds: _,
            listed,
            listed_or,
            confirmed,
            indexed,
            gguf_listed,
            last,
            shared_kv: _,
            blocks,
            period: _,
            dense: _,
        } = &self.layers;
        let pattern = self.pattern();
        if pattern.is_empty() && listed.is_none() {
            return Err(Error::new(format!("architecture {}: layers.kinds is empty", self.name)));
        }
        let listed = listed
            .iter()
            .chain(listed_or)
            .chain(confirmed)
            .flat_map(|listed| listed.words.values().map(String::as_str));
        let indexed = indexed.iter().flat_map(|indexed| [indexed.kind.as_str(), indexed.other.as_str()]);
        let gguf_listed = gguf_listed.iter().flat_map(GgufKinds::kinds);
        let of = self.weights.values().flat_map(|weight| weight.of.iter().map(String::as_str));
        pattern
            .into_iter()
            .chain(listed)
            .chain(indexed)
            .chain(gguf_listed)
            .chain(last.as_deref())
            .chain(blocks.iter().map(|blocks| blocks.kind.as_str()))
            .chain(self.draft.iter().flat_map(|draft| draft.kinds.iter().map(String::as_str)))
            .chain(of)
            .try_for_each(|kind| self.layer(kind).map(drop))?;
        let sees_all = self.head.is_none();
        let has_windows = self.tower.as_ref().is_some_and(|tower| tower.window.is_some());
        for (kind, layer) in &self.layer {
            let MixerSchema::Attend(attend) = &layer.mixer else { continue };
            if let Some(rope) = attend.rope.as_ref().filter(|rope| !self.rope.contains_key(*rope)) {
                let name = &self.name;
                return Err(Error::new(format!(
                    "architecture {name}: layers of kind '{kind}' need [rope.{rope}]"
                )));
            }
            let fault = match (&attend.span, sees_all) {
                (SpanSchema::Mutual, _) if !has_windows => "without tower.window allows no span = \"mutual\"",
                (SpanSchema::All | SpanSchema::Mutual, true) => continue,
                (
                    SpanSchema::Full | SpanSchema::Past | SpanSchema::Window(_) | SpanSchema::Chunk(_),
                    false,
                ) => continue,
                (_, true) => "without [head] needs span = \"all\"",
                (_, false) => "with [head] allows no span = \"all\"",
            };
            return Err(Error::new(format!("architecture {}: {fault} ({kind} layers)", self.name)));
        }
        Ok(())
    }

    /// Lists the kinds of layers that have each weight, those without experts, too, and removes weights that
    /// none has.
    fn place_weights(&mut self) {
        let kinds = &self.layer;
        self.weights.retain(|_, weight| {
            let is_of = |kind: &str| weight.of.is_empty() || weight.of.iter().any(|of| of == kind);
            let has_it = |(kind, layer): &(&String, &LayerSchema)| {
                let is_of = is_of(kind) || kind.strip_suffix(DENSE_KIND).is_some_and(is_of);
                is_of && weight.ffn.is_none_or(|ffn| layer.ffn.kind() == ffn)
            };
            if weight.ffn.is_none() && weight.of.is_empty() {
                return true;
            }
            weight.of = kinds.iter().filter(has_it).map(|(kind, _)| kind.clone()).collect();
            !weight.of.is_empty()
        });
    }

    /// The paths of the objects in `config.json` that scale rotary frequencies.
    pub fn scaling_paths(&self) -> impl Iterator<Item = &str> {
        self.rope.values().filter_map(|rope| rope.scaling.as_ref()).flat_map(|scaling| scaling.hf.iter())
    }

    /// Whether it describes a weight of this name, for a layer or for the model.
    pub fn has_weight(&self, name: &str) -> bool {
        self.weights.contains_key(&pattern(name))
    }

    /// Whether a weight of this name is a part of each query head of another tensor.
    pub fn is_in_heads(&self, name: &str) -> bool {
        let parts = self.weights.get(name).map(|weight| [weight.hf_part, weight.gguf_part]);
        parts.into_iter().flatten().flatten().any(|part| matches!(part, TensorPart::InHeads { .. }))
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

/// The name of a weight in descriptions, with `{i}` for the layer.
pub fn pattern(name: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 1 && parts[0] == "layers" {
        parts[1] = "{i}";
    }
    parts.join(".")
}

/// Parses the description of an architecture, which may be based on a shipped one.
///
/// # Errors
/// When the text is not valid TOML, does not follow the schema, or has no valid base.
pub fn parse(text: &str) -> Result<Arch> {
    let mut table = merged(text)?;
    describe_layers(&mut table)?;
    let mut arch = Arch::deserialize(table).map_err(|error| {
        Error::new(format!("is not a valid architecture: {}", fault_in_line(text, None, error)))
    })?;
    arch.check()?;
    arch.place_weights();
    Ok(arch)
}

/// The whole description of an architecture as TOML: with what it has from those that it is based on.
///
/// # Errors
/// As [`parse`].
pub fn whole(text: &str) -> Result<String> {
    parse(text)?;
    Ok(printed(&merged(text)?))
}
