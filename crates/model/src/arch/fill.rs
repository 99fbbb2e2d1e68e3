//! Makes [`Facts`] from an architecture's description and a model's parameters.

use girih_file::quote;
use girih_graph::{Act, Pooling, Span, Temperature, Xielu};
use girih_tensor::{Error, Result};

use super::config::{ModelConfig, shown};
use super::facts::{
    AttentionFacts, Biases, EmbedFacts, Facts, Ffn, Head, LayerFacts, Mixer, ModelSizes, NormFacts, Norms,
    OutputGate, PlainAct, PoolingFacts, QkNormFacts, Residual, ShortConvFacts, XIELU, act, act_words,
};
use super::rope_names::name_rotations;
use super::schema::{
    Arch, AttendSchema, DefaultValue, DenseSchema, DerivedScale, EmbedScale, FfnSchema, Field, HeadSchema,
    LayerSchema, MixerSchema, NormKind, NormPosition, NormsSchema, OutputGateAct, PatchPositions,
    ResidualSchema, SpanSchema, StatedValue, TemperatureSchema,
};
use super::value::brief;
use crate::limits::ModelLimits;

/// Properties of a model that its stored weights determine.
pub(crate) trait Stored {
    /// Whether the model has a weight of this name.
    fn has(&self, name: &str) -> bool;
    /// The number of rows of the weight of this name.
    fn rows(&self, name: &str) -> Result<usize>;
    /// Whether two weights have the same format, shape and values.
    fn same(&self, a: &str, b: &str) -> Result<bool>;
    /// The values of the weight of this name.
    fn values(&self, name: &str) -> Result<Vec<f32>>;
    /// The values of a tensor, by its name in the container.
    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>>;
}

/// The facts of a model with layers of these kinds.
///
/// # Errors
/// When the model lacks a parameter that the architecture needs, or has an
/// unsupported value.
pub(crate) fn fill(
    arch: &Arch,
    config: &ModelConfig<'_>,
    kinds: &[&str],
    stored: &dyn Stored,
    limits: &ModelLimits,
) -> Result<Facts> {
    let fill = Fill { arch, config, layers: kinds.len(), kinds, stored, limits };
    let width = fill.size("sizes.width", &arch.sizes.width)?;
    let tower = fill.tower()?;
    let sizes = match &tower {
        Some(tower) => ModelSizes { width, vocabulary: 0, context: tower.max_patches() },
        None => ModelSizes {
            width,
            vocabulary: fill.vocabulary()?,
            context: fill.size("sizes.context", &arch.sizes.context)?,
        },
    };
    let filled = kinds.iter().enumerate().map(|(index, kind)| fill.layer(arch.layer(kind)?, kind, index));
    let mut filled = filled.collect::<Result<Vec<LayerFacts>>>()?;
    name_rotations(&mut filled);
    let ropes = filled.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref());
    let context = ropes.filter_map(|rope| rope.context).fold(sizes.context, usize::min);
    let sizes = ModelSizes { context, ..sizes };
    Ok(Facts {
        name: arch.name.clone(),
        sizes,
        embed: fill.embed(&sizes)?,
        layers: filled,
        head: arch.head.as_ref().map(|head| fill.head(head)).transpose()?,
        pooling: fill.pooling()?,
        streams: fill.streams()?,
        assistant: fill.assistant()?,
        tower,
        image_layers: fill.image_layers()?,
    })
}

/// The maximum number of taps of a short convolution: known models have 3 or 4.
pub(super) const MAX_TAPS: usize = 64;

/// The head, among the parts that a flag says a bias of.
const HEAD: &str = "head";

/// The default of the size of a head whose rows are twice as wide.
const DOUBLED: &str = "2 * width / heads";

/// The default of the number whose inverse square root scales the scores, if it is half the size of a head.
const HALVED: &str = "head_size / 2";

/// What the facts of a model are made from.
pub(super) struct Fill<'a> {
    pub(super) arch: &'a Arch,
    pub(super) config: &'a ModelConfig<'a>,
    pub(super) layers: usize,
    pub(super) kinds: &'a [&'a str],
    pub(super) stored: &'a dyn Stored,
    pub(super) limits: &'a ModelLimits,
}

/// The sizes of a layer's attention, checked for consistency.
struct HeadSizes {
    heads: usize,
    kv_heads: usize,
    size: usize,
}

impl Fill<'_> {
    pub(super) fn missing(&self, name: &str, field: &Field) -> Error {
        let key = self.config.key(field);
        Error::new(format!("{key} is missing; architecture {} needs it for {name}", self.arch.name))
    }

    pub(super) fn size(&self, name: &str, field: &Field) -> Result<usize> {
        self.config.size(field)?.ok_or_else(|| self.missing(name, field))
    }

    pub(super) fn required(&self, name: &str, field: &Field) -> Result<f32> {
        Ok(self.config.number(field)?.ok_or_else(|| self.missing(name, field))? as f32)
    }

    /// One layer, by the description of its kind.
    fn layer(&self, schema: &LayerSchema, kind: &str, index: usize) -> Result<LayerFacts> {
        self.check_biases(kind, index)?;
        let residual = self.residual(&schema.residual)?;
        let norms = self.norms(schema, index, residual)?;
        let mixer = match &schema.mixer {
            MixerSchema::Attend(attend) => {
                let facts = self.attend(attend, index, norms.norm.epsilon)?;
                match &attend.beside {
                    None => Mixer::Attend(facts),
                    Some(ssm) => {
                        let ssm = self.ssm(ssm, index, norms.norm.epsilon)?;
                        Mixer::AttendAndSsm { attend: facts, ssm }
                    }
                }
            }
            MixerSchema::ShortConv(conv) => Mixer::ShortConv(ShortConvFacts { taps: self.taps(&conv.taps)? }),
            MixerSchema::Ssm(ssm) => Mixer::Ssm(self.ssm(ssm, index, norms.norm.epsilon)?),
            MixerSchema::None {} => Mixer::None,
            MixerSchema::DeltaRule(delta) => Mixer::DeltaRule(self.delta_rule(delta, norms.norm.epsilon)?),
        };
        let ffn = self.ffn(&schema.ffn, index)?;
        let (beside, input) = (self.beside(&schema.ffn, index)?, self.layer_input(&ffn, index)?);
        let (kind, scale) = (kind.to_owned(), self.layer_scale(index)?);
        let block = self.block(schema, index, (&mixer, &ffn, &norms, residual))?;
        Ok(LayerFacts { kind, mixer, ffn, norms, residual, block, beside, input, scale })
    }

    fn residual(&self, schema: &ResidualSchema) -> Result<Residual> {
        let parallel = schema.parallel.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        let scale = schema.scale.as_ref().map_or(Ok(None), |field| self.config.number(field))?;
        let root = if schema.scale_over_root_layers { (self.layers as f64).sqrt() } else { 1.0 };
        let scale = scale.map(|scale| (scale / root) as f32);
        Ok(Residual { parallel: parallel == Some(true), scale })
    }

    /// The norms of a layer: those that its description has, without `before_ffn` if parallel parts share a
    /// norm.
    fn norms(&self, schema: &LayerSchema, layer: usize, residual: Residual) -> Result<Norms> {
        let name = |position: &NormPosition| format!("layers.{layer}.norms.{}", position.name());
        let mut positions = schema.norms.positions.clone();
        if let Some(further) = &schema.norms.further {
            let first = further.positions.first().map(name).unwrap_or_default();
            if self.is_set(&further.condition, &first)? {
                positions.extend(&further.positions);
            }
        }
        if residual.parallel && schema.residual.shared_norm {
            positions.retain(|position| *position != NormPosition::BeforeFfn);
        }
        let mut others = NormPosition::ALL.iter().filter(|position| !positions.contains(position)).map(name);
        if let Some(unread) = others.find(|name| self.stored.has(name)) {
            return Err(Error::new(format!(
                "the model has the weight '{unread}', but its parameters say that the layer lacks this norm"
            )));
        }
        let norms = positions.iter().map(|position| {
            let name = name(position);
            self.norm(&schema.norms, &name, &format!("{name}.bias"))
        });
        let norms = norms.collect::<Result<Vec<NormFacts>>>()?;
        let Some(&norm) = norms.first() else {
            let name = &self.arch.name;
            return Err(Error::new(format!("architecture {name}: norms.places is empty")));
        };
        if norms.iter().any(|other| *other != norm) {
            return Err(Error::new(format!(
                "some norms of layer {layer} have a weight or a bias that others lack; all or none need it"
            )));
        }
        let after_epsilon =
            schema.norms.after_epsilon.as_ref().map(|field| self.epsilon(field)).transpose()?;
        Ok(Norms { positions, norm, after_epsilon })
    }

    /// A size of a layer, which the field may list for each.
    pub(super) fn size_of_layer(&self, name: &str, field: &Field, index: usize) -> Result<Option<usize>> {
        if field.by_layer && !field.gguf_also.is_empty() {
            let arch = &self.arch.name;
            return Err(Error::new(format!(
                "architecture {arch}: {name} has both by_layer and gguf_also; one is needed"
            )));
        }
        if let Some(size) = self.config.overridden_size(field, index, self.layers)? {
            return Ok(Some(size));
        }
        match self.config.listed_size(field, index, self.layers)? {
            Some(0) => {
                let key = self.config.key(field);
                Err(Error::new(format!("{key} lists 0 for layer {index}, which needs a positive {name}")))
            }
            Some(size) => Ok(Some(size)),
            None => self.config.size(field),
        }
    }

    /// What a norm with vectors of these names computes. It has a weight unless its description has none.
    pub(super) fn norm(&self, norms: &NormsSchema, weight: &str, bias: &str) -> Result<NormFacts> {
        let epsilon = self.epsilon(&norms.epsilon)?;
        let has_weight = self.stored.has(weight);
        if !has_weight && self.arch.has_weight(weight) {
            return Err(Error::new(format!("the model lacks the weight '{weight}', which its norm needs")));
        }
        let has_bias = self.stored.has(bias);
        if has_bias && (norms.kind == NormKind::Rms || !has_weight) {
            return Err(Error::new(format!(
                "the model has the bias '{bias}', but only a layer norm with a weight may have one"
            )));
        }
        Ok(NormFacts { kind: norms.kind, epsilon, weight: has_weight, bias: has_bias })
    }

    /// The epsilon of a norm.
    pub(super) fn epsilon(&self, field: &Field) -> Result<f32> {
        let epsilon = self.required("norms.epsilon", field)?;
        if epsilon < 0.0 {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is {epsilon}; a number of at least 0 is needed")));
        }
        Ok(epsilon)
    }

    /// A number that models may omit.
    pub(super) fn optional(&self, field: Option<&Field>) -> Result<Option<f32>> {
        let number = field.map_or(Ok(None), |field| self.config.number(field))?;
        Ok(number.map(|number| number as f32))
    }

    /// A size of a layer whose default may be another one, of this name and value.
    pub(super) fn size_or(
        &self,
        name: &str,
        field: &Field,
        index: usize,
        other: (&str, usize),
    ) -> Result<usize> {
        if let Some(size) = self.size_of_layer(name, field, index)? {
            return Ok(size);
        }
        match self.config.default(field) {
            Some(DefaultValue::Word(word)) if word == other.0 => Ok(other.1),
            Some(DefaultValue::Word(word)) => Err(Error::new(format!(
                "architecture {}: '{word}' is not a valid default for {name}",
                self.arch.name
            ))),
            _ => Err(self.missing(name, field)),
        }
    }

    /// The rows of the embedding table, which the parameters must state too.
    fn vocabulary(&self) -> Result<usize> {
        let (rows, field) = (self.stored.rows("embed.table")?, self.arch.vocabulary());
        let stated = self.config.size(&field)?;
        if stated.is_none() && !self.config.is_gguf() {
            return Err(self.missing("sizes.vocabulary", &field));
        }
        self.check_rows(&field, stated, "the embedding table", rows)?;
        Ok(rows)
    }

    /// Checks that a table has the number of rows that the parameters state, if they do.
    pub(super) fn check_rows(
        &self,
        field: &Field,
        stated: Option<usize>,
        table: &str,
        rows: usize,
    ) -> Result<()> {
        match stated.filter(|stated| *stated != rows) {
            Some(stated) => {
                let key = self.config.key(field);
                Err(Error::new(format!(
                    "{key} is {stated}, but {table} has {rows} rows; equal numbers are needed"
                )))
            }
            None => Ok(()),
        }
    }

    /// Checks that the projections of a layer have the biases that `config.json` states, as
    /// transformers ignores others and makes up missing ones. A GGUF states them by its tensors.
    fn check_biases(&self, kind: &str, layer: usize) -> Result<()> {
        if self.config.is_gguf() {
            return Ok(());
        }
        for (key, flag) in &self.arch.biases {
            let stated = match self.config.entry(key) {
                Some(value) => value.as_bool().ok_or_else(|| {
                    let value = brief(value);
                    Error::new(format!("config.json's '{key}' is {value}; true or false is needed"))
                })?,
                None => flag.default,
            };
            let is_of_layer = |part: &&String| {
                let weight = self.arch.weights.get(&format!("layers.{{i}}.{part}.bias"));
                weight.is_none_or(|weight| weight.is_of(kind))
            };
            let has = |part: &str| match part {
                HEAD => self.stored.has("head.bias"),
                _ => self.stored.has(&format!("layers.{layer}.{part}.bias")),
            };
            if let Some(part) = flag.of.iter().filter(is_of_layer).find(|part| has(part) != stated) {
                let has = if stated { "has no" } else { "has a" };
                let part = match part.as_str() {
                    HEAD => "the head".to_owned(),
                    _ => format!("'{part}' of layer {layer}"),
                };
                return Err(Error::new(format!(
                    "config.json's '{key}' is {stated}, but {part} {has} bias; both must agree"
                )));
            }
        }
        Ok(())
    }

    fn heads(&self, attend: &AttendSchema, index: usize) -> Result<HeadSizes> {
        let width = self.size("sizes.width", &self.arch.sizes.width)?;
        let heads = self.size_of_layer("mixer.heads", &attend.heads, index)?;
        let heads = heads.ok_or_else(|| self.missing("mixer.heads", &attend.heads))?;
        let is_multi_query = attend.multi_query.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        let kv_heads = match is_multi_query {
            Some(true) => 1,
            _ => self.size_or("mixer.kv_heads", &attend.kv_heads, index, ("heads", heads))?,
        };
        let kv_heads = kv_heads.saturating_mul(attend.kv_heads_times.unwrap_or(1));
        let shared = match self.config.default(&attend.head_size) {
            Some(DefaultValue::Word(word)) if word == DOUBLED => (DOUBLED, 2 * width / heads),
            _ => ("width / heads", width / heads),
        };
        let size = self.size_or("mixer.head_size", &attend.head_size, index, shared)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::new(format!(
                "{heads} query heads cannot share {kv_heads} KV heads; a multiple of the KV heads is needed"
            )));
        }
        if size == 0 || !size.is_multiple_of(2) {
            return Err(Error::new(format!("the head size is {size}; an even number is needed")));
        }
        if size > self.limits.head_size {
            return Err(Error::new(format!("the head size is {size}; the cap is {}", self.limits.head_size)));
        }
        Ok(HeadSizes { heads, kv_heads, size })
    }

    fn attend(&self, schema: &AttendSchema, layer: usize, epsilon: f32) -> Result<AttentionFacts> {
        if let Some(latent) = &schema.latent {
            return self.attend_latent(schema, latent, layer);
        }
        let heads = self.heads(schema, layer)?;
        // llama.cpp takes 0 as absent.
        let scale = self.optional(schema.scale.as_ref())?;
        let scale = scale.filter(|scale| *scale != 0.0 || !self.config.is_gguf());
        if let Some(scale) = scale.filter(|scale| *scale <= 0.0) {
            return Err(Error::new(format!("scores are multiplied by {scale}; a positive number is needed")));
        }
        let scale = scale.map_or_else(|| self.derived_scale(schema, &heads), Ok)?;
        let scale = scale * self.optional(schema.query_factor.as_ref())?.unwrap_or(1.0);
        let bias = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.bias"));
        Ok(AttentionFacts {
            heads: heads.heads,
            kv_heads: heads.kv_heads,
            head_size: heads.size,
            value_size: self.value_size(schema, &heads)?,
            value_factor: self.optional(schema.value_factor.as_ref())?.filter(|factor| *factor != 1.0),
            span: self.span(schema, layer)?,
            rope: self.rotation(schema, layer, heads.size)?,
            qk_norm: self.qk_norm(schema, layer, epsilon)?,
            biases: Biases { q: bias("q"), k: bias("k"), v: bias("v"), o: bias("o") },
            scale,
            softcap: self.cap(schema.softcap.as_ref())?,
            sinks: self.stored.has(&format!("layers.{layer}.mixer.sinks")),
            gate: self.output_gate(schema, layer, &heads)?,
            latent: None,
            values: self.values(&schema.values, layer, epsilon)?,
            temperature: schema.temperature.as_ref().map_or(Ok(None), |schema| self.temperature(schema))?,
            input_scale: self.factor(schema.input_scale.as_ref())?,
            output_scale: self.factor(schema.output_scale.as_ref())?,
        })
    }

    /// The size of a head's values, if it is not that of its keys.
    fn value_size(&self, schema: &AttendSchema, heads: &HeadSizes) -> Result<Option<usize>> {
        let Some(field) = &schema.value_size else { return Ok(None) };
        let size = self.size("mixer.value_size", field)?;
        if size > self.limits.head_size {
            let (key, cap) = (self.config.key(field), self.limits.head_size);
            return Err(Error::new(format!("{key} is {size}; the cap is {cap}")));
        }
        Ok((size != heads.size).then_some(size))
    }

    /// The gate of the results of attention: its weight says whether it has a number for each head.
    fn output_gate(
        &self,
        schema: &AttendSchema,
        layer: usize,
        heads: &HeadSizes,
    ) -> Result<Option<OutputGate>> {
        let weight = format!("layers.{layer}.mixer.gate.weight");
        let has = self.stored.has(&weight);
        let stated = schema.gate_if.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        if let (Some(stated), Some(field)) = (stated.filter(|stated| *stated != has), &schema.gate_if) {
            let (key, has) = (self.config.key(field), if has { "a" } else { "no" });
            return Err(Error::new(format!(
                "{key} is {stated}, but layer {layer} has {has} gate of its attention; both must agree"
            )));
        }
        let Some(act) = schema.gate.filter(|_| has) else { return Ok(None) };
        let act = match act {
            OutputGateAct::Sigmoid => Act::Sigmoid,
            OutputGateAct::Softplus => Act::Softplus,
        };
        if self.arch.is_in_heads("layers.{i}.mixer.gate.weight") {
            // A part of each query head, which is cut out once the sizes of heads are known.
            return Ok(Some(OutputGate { act, by_head: false }));
        }
        let rows = self.stored.rows(&weight)?;
        let by_head = rows == heads.heads;
        let size = self.value_size(schema, heads)?.unwrap_or(heads.size);
        if !by_head && rows != heads.heads * size {
            let heads = heads.heads;
            return Err(Error::new(format!(
                "weight '{weight}' has {rows} rows; one for each of {heads} heads or of their {size} values is needed"
            )));
        }
        Ok(Some(OutputGate { act, by_head }))
    }

    pub(super) fn temperature(&self, schema: &TemperatureSchema) -> Result<Option<Temperature>> {
        if let Some(condition) = &schema.condition
            && self.config.flag(condition)? != Some(true)
        {
            return Ok(None);
        }
        let beta = self.required("mixer.temperature.beta", &schema.beta)?;
        let every = self.size("mixer.temperature.every", &schema.every)?;
        Ok(Some(Temperature { beta, every: every as u32, offset: schema.offset }))
    }

    /// The norms of queries and keys of a layer.
    fn qk_norm(&self, schema: &AttendSchema, layer: usize, epsilon: f32) -> Result<Option<QkNormFacts>> {
        let Some(of) = schema.qk_norm else { return Ok(None) };
        let has = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.norm"));
        let weight = has("q");
        let described = self.arch.has_weight(&format!("layers.{layer}.mixer.q.norm"));
        if let Some(field) = schema.qk_norm_if.as_ref().filter(|_| !described)
            && self.config.flag(field)? != Some(true)
        {
            return Ok(None);
        }
        if let Some(field) = schema.qk_norm_if.as_ref().filter(|_| described) {
            if let Some(stated) = self.config.flag(field)?.filter(|stated| *stated != weight) {
                let (key, has) = (self.config.key(field), if weight { "a" } else { "no" });
                return Err(Error::new(format!(
                    "{key} is {stated}, but layer {layer} has {has} norm of queries; both must agree"
                )));
            }
            if !weight && !has("k") {
                return Ok(None);
            }
        }
        if weight != has("k") && self.kv_of_layer(layer)?.is_none() && self.arch.assistant.is_none() {
            return Err(Error::new(format!(
                "layer {layer} has a weight for the norm of queries or for that of keys; both or none are needed"
            )));
        }
        Ok(Some(QkNormFacts { of, epsilon, weight }))
    }

    /// The number of taps of a convolution.
    pub(super) fn taps(&self, field: &Field) -> Result<usize> {
        let taps = self.size("mixer.taps", field)?;
        if !(2..=MAX_TAPS).contains(&taps) {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is {taps}; a number from 2 to {MAX_TAPS} is needed")));
        }
        Ok(taps)
    }

    /// The inner size of a feed-forward part.
    pub(super) fn ffn_size(&self, schema: &DenseSchema, layer: usize) -> Result<usize> {
        let width = self.size("sizes.width", &self.arch.sizes.width)?;
        let size = self.size_or("ffn.size", &schema.size, layer, ("4 * width", width.saturating_mul(4)))?;
        let size = if self.is_doubled(schema, layer)? { size.saturating_mul(2) } else { size };
        let Some(rounded) = schema.hf_rounded.as_ref().filter(|_| !self.config.is_gguf()) else {
            return Ok(size);
        };
        if self.config.flag(&rounded.condition)? != Some(true) {
            return Ok(size);
        }
        let times = self.config.number(&rounded.times)?.unwrap_or(1.0);
        let multiple = self.size("ffn.hf_rounded.multiple", &rounded.multiple)?;
        let scaled = (times * (2 * size / 3) as f64).trunc();
        if !(1.0..=f64::from(i32::MAX)).contains(&scaled) {
            let key = self.config.key(&rounded.times);
            return Err(Error::new(format!(
                "{key} is {times}, which makes an inner size of {scaled}; one from 1 to 2147483647 is needed"
            )));
        }
        (scaled as usize).checked_next_multiple_of(multiple).ok_or_else(|| {
            let key = self.config.key(&rounded.multiple);
            Error::new(format!("{key} is {multiple}, which exceeds the largest inner size"))
        })
    }

    /// The factor of scores that no key states.
    fn derived_scale(&self, schema: &AttendSchema, heads: &HeadSizes) -> Result<f32> {
        let scale_of = self.scale_of(schema, heads)?;
        if scale_of <= 0.0 {
            return Err(Error::new(format!(
                "scores are divided by the square root of {scale_of}; a positive number is needed"
            )));
        }
        Ok((1.0 / scale_of.sqrt()) as f32)
    }

    /// The number whose inverse square root scales the scores.
    fn scale_of(&self, schema: &AttendSchema, heads: &HeadSizes) -> Result<f64> {
        let Some(field) = &schema.scale_of else { return Ok(heads.size as f64) };
        let implied = schema.gguf_scale_of.filter(|_| self.config.is_gguf());
        if let Some(implied) = implied
            && self.config.stated(field)?.is_none()
        {
            let width = self.size("sizes.width", &self.arch.sizes.width)?;
            return Ok(implied.of(self.layers, width, heads.heads, heads.size) as f64);
        }
        let usual = match self.config.default(field) {
            Some(DefaultValue::Word(word)) if word == HALVED => heads.size as f64 / 2.0,
            _ => heads.size as f64,
        };
        Ok(self.config.number(field)?.unwrap_or(usual))
    }

    fn cap(&self, field: Option<&Field>) -> Result<Option<f32>> {
        let cap = self.optional(field)?;
        match cap {
            Some(cap) if cap <= 0.0 => {
                Err(Error::new(format!("a softcap is {cap}; a positive number is needed")))
            }
            cap => Ok(cap),
        }
    }

    pub(super) fn span(&self, schema: &AttendSchema, layer: usize) -> Result<Span> {
        if let Some(field) = &schema.span_if
            && self.config.flag(field)? != Some(true)
        {
            return Ok(Span::Full);
        }
        match &schema.span {
            SpanSchema::Full => Ok(Span::Full),
            SpanSchema::Past => Ok(Span::Past),
            SpanSchema::All => Ok(Span::All),
            SpanSchema::Mutual => Ok(Span::Mutual),
            // A window of null is none, as in transformers' `masking_utils` of Mistral.
            SpanSchema::Window(field) | SpanSchema::Chunk(field) if self.config.is_null(field) => {
                Ok(Span::Full)
            }
            SpanSchema::Chunk(field) => Ok(Span::Chunk(self.size("mixer.span.chunk", field)? as u32)),
            // llama.cpp's converter writes 0 for none.
            SpanSchema::Window(field)
                if self.config.is_gguf() && !field.by_layer && self.config.number(field)? == Some(0.0) =>
            {
                Ok(Span::Full)
            }
            SpanSchema::Window(field) => {
                match (self.size_of_layer("mixer.span.window", field, layer)?, self.config.default(field)) {
                    // An assistant's rows are those of the position after.
                    (Some(window), _) if self.arch.assistant.is_some() => {
                        Ok(Span::Window((window as u32).saturating_add(1)))
                    }
                    (Some(window), _) => Ok(Span::Window(window as u32)),
                    (None, Some(DefaultValue::Word(word))) if word == "full" => Ok(Span::Full),
                    (None, _) => Err(self.missing("mixer.span.window", field)),
                }
            }
        }
    }

    fn ffn(&self, schema: &FfnSchema, layer: usize) -> Result<Ffn> {
        let bias = |part: &str| self.stored.has(&format!("layers.{layer}.ffn.{part}.bias"));
        match schema {
            FfnSchema::Gated(dense) => {
                let act = self.act(dense, &self.act_word(dense)?)?;
                Ok(Ffn::Gated {
                    size: self.ffn_size(dense, layer)?,
                    act,
                    limit: self.limit(dense.limit.as_ref(), layer)?,
                    cutoff: dense.sparsity.as_ref().map_or(Ok(None), |field| self.cutoff(field, layer))?,
                    gate_scale: self.factor(dense.gate_scale.as_ref())?,
                    output_scale: self.factor(dense.output_scale.as_ref())?,
                    biases: [bias("gate"), bias("up"), bias("down")],
                })
            }
            FfnSchema::Plain(dense) => {
                let (word, size) = (self.act_word(dense)?, self.ffn_size(dense, layer)?);
                let act = match word.as_str() {
                    XIELU => PlainAct::Xielu(self.xielu(layer)?),
                    _ => PlainAct::Plain(self.act(dense, &word)?),
                };
                Ok(Ffn::Plain { size, act, biases: [bias("up"), bias("down")] })
            }
            FfnSchema::Experts(experts) => self.experts(experts, layer),
            FfnSchema::None {} => Ok(Ffn::None),
        }
    }

    /// The parameters of xIELU in a layer. Those that the model has are made positive by softplus (Huang &
    /// Schlag 2024, arXiv 2411.13010).
    fn xielu(&self, layer: usize) -> Result<Xielu> {
        let number = |part: &str| {
            let name = format!("layers.{layer}.ffn.act.{part}");
            match self.stored.values(&name)?[..] {
                [number] if number.is_finite() => Ok(f64::from(number)),
                _ => Err(Error::new(format!("weight '{name}' is not one finite number, which xIELU needs"))),
            }
        };
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let (beta, epsilon) = (number("beta")?, number("epsilon")?);
        let (positive, negative) = (softplus(number("positive")?), beta + softplus(number("negative")?));
        let [positive, negative, beta, epsilon] = [positive, negative, beta, epsilon].map(|x| x as f32);
        Ok(Xielu { positive, negative, beta, epsilon })
    }

    /// The name of an activation in the model.
    pub(super) fn act_word(&self, schema: &DenseSchema) -> Result<String> {
        self.config.word(&schema.act)?.ok_or_else(|| self.missing("ffn.act", &schema.act))
    }

    /// The activation of this name.
    pub(super) fn act(&self, schema: &DenseSchema, word: &str) -> Result<Act> {
        act(schema.act_names.get(word).map_or(word, String::as_str)).ok_or_else(|| {
            let key = self.config.key(&schema.act);
            let (word, known) = (quote(word), act_words());
            Error::new(format!("{key} is {word}; the activations {known} are supported"))
        })
    }

    fn embed(&self, sizes: &ModelSizes) -> Result<EmbedFacts> {
        let embed = &self.arch.embed;
        let table = |has: bool, name: &str| has.then(|| self.stored.rows(name)).transpose();
        let positions = table(embed.positions, "embed.positions")?;
        let by_number =
            self.arch.tower.as_ref().is_none_or(|tower| tower.positions == PatchPositions::Learned);
        if let Some(rows) = positions.filter(|rows| *rows != sizes.context && by_number) {
            let (key, context) = (self.config.key(&self.arch.sizes.context), sizes.context);
            return Err(Error::new(format!(
                "{key} is {context}, but the table of positions has {rows} rows; equal numbers are needed"
            )));
        }
        let is_scaled = embed.scale_if.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        let token_types = table(embed.token_types, "embed.token_types")?;
        if let (Some(field), Some(rows)) = (&embed.token_type_count, token_types) {
            self.check_rows(field, self.config.size(field)?, "the table of token types", rows)?;
        }
        Ok(EmbedFacts {
            scale: match &embed.scale {
                None => None,
                Some(_) if is_scaled == Some(false) => None,
                Some(EmbedScale::Derived(DerivedScale::SqrtWidth)) => Some((sizes.width as f32).sqrt()),
                Some(EmbedScale::Stated(field)) => self.optional(Some(field))?,
            },
            token_types,
            positions,
            norm: embed
                .norm
                .then(|| self.norm(&self.arch.norms, "embed.norm.weight", "embed.norm.bias"))
                .transpose()?,
        })
    }

    fn pooling(&self) -> Result<Option<PoolingFacts>> {
        let Some(field) = self.arch.pooling.as_ref().map(|pooling| &pooling.how) else { return Ok(None) };
        let how = match self.config.stated(field)? {
            Some(StatedValue::Number(0.0)) => return Ok(None),
            Some(StatedValue::Number(1.0)) => Pooling::Mean,
            Some(StatedValue::Number(2.0)) => Pooling::First,
            Some(StatedValue::Number(3.0)) => Pooling::Last,
            Some(other) => {
                let key = self.config.key(field);
                return Err(Error::new(format!(
                    "{key} is {}; the types 0 (none), 1 (mean), 2 (first) and 3 (last) are supported",
                    shown(&other)
                )));
            }
            None => self.default_pooling(field)?,
        };
        Ok(Some(PoolingFacts { how, normalized: false }))
    }

    fn default_pooling(&self, field: &Field) -> Result<Pooling> {
        let known = |word: &String| Pooling::ALL.iter().find(|how| how.name() == word).copied();
        let found = match &field.default {
            Some(DefaultValue::Word(word)) => known(word),
            _ => None,
        };
        found.ok_or_else(|| {
            let name = &self.arch.name;
            Error::new(format!("architecture {name}: pooling.how needs the default first, last or mean"))
        })
    }

    fn head(&self, head: &HeadSchema) -> Result<Head> {
        let norm = self.norm(&self.arch.norms, "head.norm.weight", "head.norm.bias")?;
        let stored = self.stored.has("head.weight");
        let stated = head.tied.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        if stated == Some(false) && !stored {
            return Err(Error::new(
                "the head is not tied to the embedding table, but the model has no tensor for it",
            ));
        }
        // transformers 5 ties no head whose weights are stored and differ from the embedding table.
        let tied = match (stated, stored) {
            (Some(true), true) => self.stored.same("head.weight", "embed.table")?,
            _ => !stored,
        };
        let divisor = self.optional(head.divisor.as_ref())?;
        if let Some(field) = head.divisor.as_ref().filter(|_| divisor == Some(0.0)) {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is 0, by which logits cannot be divided")));
        }
        let divisor = match (head.divisor_of_width, &head.divisor) {
            (true, Some(field)) => {
                let (width, base) =
                    (self.size("sizes.width", &self.arch.sizes.width)?, self.size("head.divisor", field)?);
                Some((width as f64 / base as f64) as f32)
            }
            _ => divisor,
        };
        Ok(Head {
            norm,
            tied,
            bias: self.stored.has("head.bias"),
            scale: self.optional(head.scale.as_ref())?,
            divisor,
            softcap: self.cap(head.softcap.as_ref())?,
        })
    }
}
