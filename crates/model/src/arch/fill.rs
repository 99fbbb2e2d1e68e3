//! Makes [`Facts`] from an architecture's description and a model's parameters.

use girih_file::quote;
use girih_graph::{Act, Pairing, Pooling, Span};
use girih_tensor::{Error, Result};

use super::config::{ModelConfig, shown};
use super::facts::{
    AttentionFacts, Biases, EmbedFacts, Facts, Ffn, Head, LayerFacts, Mixer, ModelSizes, NormFacts, Norms,
    PoolingFacts, Rope, ShortConvFacts,
};
use super::rope;
use super::schema::{
    self, Arch, DefaultValue, EmbedScale, FfnKind, Field, HeadSchema, LayerKind, StatedValue,
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
    /// The values of a tensor, by its name in the container.
    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>>;
}

/// The facts of a model of `layers` layers.
///
/// # Errors
/// When the model lacks a parameter that the architecture needs, or has an
/// unsupported value.
pub(crate) fn fill(
    arch: &Arch,
    config: &ModelConfig<'_>,
    layers: usize,
    stored: &dyn Stored,
    limits: &ModelLimits,
) -> Result<Facts> {
    let fill = Fill { arch, config, layers, stored };
    let norm = NormFacts { kind: arch.norms.kind, epsilon: fill.epsilon()? };
    let norms = Norms { positions: arch.norms.positions.clone(), norm };
    let heads = fill.heads(limits)?;
    let spans = fill.spans(layers)?;
    let mut filled = Vec::with_capacity(layers);
    for (index, kind) in spans.into_iter().enumerate() {
        fill.check_biases(index)?;
        filled.push(LayerFacts {
            mixer: match kind {
                LayerKind::Conv => Mixer::ShortConv(fill.short_conv()?),
                _ => Mixer::Attend(fill.attend(index, kind, &heads, norm.epsilon)?),
            },
            ffn: fill.ffn(index)?,
            norms: norms.clone(),
        });
    }
    let sizes = ModelSizes {
        width: heads.width,
        vocabulary: fill.vocabulary()?,
        context: fill.size("sizes.context", &arch.sizes.context)?,
    };
    Ok(Facts {
        name: arch.name.clone(),
        sizes,
        embed: fill.embed(&sizes, norm)?,
        layers: filled,
        head: arch.head.as_ref().map(|head| fill.head(head, norm)).transpose()?,
        pooling: fill.pooling()?,
    })
}

/// The maximum number of taps of a short convolution: known models have 3.
const MAX_TAPS: usize = 64;

struct Fill<'a> {
    arch: &'a Arch,
    config: &'a ModelConfig<'a>,
    layers: usize,
    stored: &'a dyn Stored,
}

/// The sizes of attention, checked for consistency.
struct HeadSizes {
    width: usize,
    heads: usize,
    kv_heads: usize,
    size: usize,
}

impl Fill<'_> {
    fn missing(&self, name: &str, field: &Field) -> Error {
        let key = self.config.key(field);
        Error::new(format!("{key} is missing; architecture {} needs it for {name}", self.arch.name))
    }

    fn size(&self, name: &str, field: &Field) -> Result<usize> {
        self.config.size(field)?.ok_or_else(|| self.missing(name, field))
    }

    fn required(&self, name: &str, field: &Field) -> Result<f32> {
        Ok(self.config.number(field)?.ok_or_else(|| self.missing(name, field))? as f32)
    }

    /// The epsilon of the norms.
    fn epsilon(&self) -> Result<f32> {
        let field = &self.arch.norms.epsilon;
        let epsilon = self.required("norms.epsilon", field)?;
        if epsilon < 0.0 {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is {epsilon}; a number of at least 0 is needed")));
        }
        Ok(epsilon)
    }

    /// A number that models may omit.
    fn optional(&self, field: Option<&Field>) -> Result<Option<f32>> {
        let number = field.map_or(Ok(None), |field| self.config.number(field))?;
        Ok(number.map(|number| number as f32))
    }

    /// A size whose default may be one of `words`.
    fn size_or(&self, name: &str, field: &Field, words: &[(&str, usize)]) -> Result<usize> {
        if let Some(size) = self.config.size(field)? {
            return Ok(size);
        }
        let Some(DefaultValue::Word(word)) = self.config.default(field) else {
            return Err(self.missing(name, field));
        };
        let known = words.iter().find(|(known, _)| known == word);
        known.map(|(_, size)| *size).ok_or_else(|| {
            Error::new(format!("architecture {}: '{word}' is not a valid default for {name}", self.arch.name))
        })
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
    fn check_rows(&self, field: &Field, stated: Option<usize>, table: &str, rows: usize) -> Result<()> {
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
    fn check_biases(&self, layer: usize) -> Result<()> {
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
            let wrong =
                flag.of.iter().find(|part| self.stored.has(&format!("layers.{layer}.{part}.bias")) != stated);
            if let Some(part) = wrong {
                let has = if stated { "has no" } else { "has a" };
                return Err(Error::new(format!(
                    "config.json's '{key}' is {stated}, but '{part}' of layer {layer} {has} bias; both must agree"
                )));
            }
        }
        Ok(())
    }

    fn heads(&self, limits: &ModelLimits) -> Result<HeadSizes> {
        let sizes = &self.arch.sizes;
        let width = self.size("sizes.width", &sizes.width)?;
        let heads = self.size("sizes.heads", &sizes.heads)?;
        let kv_heads = match self.config.gguf_list(&sizes.kv_heads, self.layers)? {
            Some(list) => self.one_size(&sizes.kv_heads, &list)?,
            None => self.size_or("sizes.kv_heads", &sizes.kv_heads, &[("heads", heads)])?,
        };
        let size = self.size_or("sizes.head_size", &sizes.head_size, &[("width / heads", width / heads)])?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::new(format!(
                "{heads} query heads cannot share {kv_heads} KV heads; a multiple of the KV heads is needed"
            )));
        }
        if size == 0 || !size.is_multiple_of(2) {
            return Err(Error::new(format!("the head size is {size}; an even number is needed")));
        }
        if size > limits.head_size {
            return Err(Error::new(format!("the head size is {size}; the cap is {}", limits.head_size)));
        }
        Ok(HeadSizes { width, heads, kv_heads, size })
    }

    /// The size that a list has for the layers that have any, which are those with attention.
    fn one_size(&self, field: &Field, list: &[u64]) -> Result<usize> {
        let mut sizes = list.iter().copied().filter(|size| *size > 0);
        let has_conv = self.arch.mixer.layer_types.as_ref().is_some_and(|types| types.conv.is_some());
        match (sizes.next(), sizes.next_back()) {
            (Some(size), other) if other.is_none_or(|_| list.iter().all(|one| [0, size].contains(one))) => {
                let fits = has_conv || list.iter().all(|one| *one == size);
                fits.then(|| usize::try_from(size).ok().filter(|size| *size <= i32::MAX as usize)).flatten()
            }
            _ => None,
        }
        .ok_or_else(|| {
            let (key, name) = (self.config.key(field), &self.arch.name);
            Error::new(format!(
                "{key} has several sizes, or none; architecture {name} needs one for all layers that attend"
            ))
        })
    }

    /// The kinds of layers of a model that has short convolutions, unless it lists them by name.
    fn convolutions(&self, layers: usize) -> Result<Option<Vec<LayerKind>>> {
        let Some(types) = self.arch.mixer.layer_types.as_ref().filter(|types| types.conv.is_some()) else {
            return Ok(None);
        };
        let kind = |is_full: bool| if is_full { LayerKind::Full } else { LayerKind::Conv };
        if let Some(list) = self.config.gguf_list(&self.arch.sizes.kv_heads, layers)? {
            return Ok(Some(list.into_iter().map(|heads| kind(heads > 0)).collect()));
        }
        let Some((key, value)) = types.hf_full.as_ref().and_then(|key| Some((key, self.config.json(key)?)))
        else {
            return Ok(None);
        };
        let index = |index: &serde_json::Value| index.as_u64().filter(|index| *index < layers as u64);
        let indexes = value.as_array().and_then(|list| list.iter().map(index).collect::<Option<Vec<u64>>>());
        let indexes = indexes.ok_or_else(|| {
            let value = brief(value);
            Error::new(format!(
                "config.json's '{key}' is {value}; a list of indexes below {layers} is needed"
            ))
        })?;
        Ok(Some((0..layers as u64).map(|layer| kind(indexes.contains(&layer))).collect()))
    }

    fn short_conv(&self) -> Result<ShortConvFacts> {
        let field = self.arch.mixer.taps.as_ref().ok_or_else(|| {
            Error::new(format!("architecture {}: layers of kind 'conv' need mixer.taps", self.arch.name))
        })?;
        let taps = self.size("mixer.taps", field)?;
        if !(2..=MAX_TAPS).contains(&taps) {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is {taps}; a number from 2 to {MAX_TAPS} is needed")));
        }
        Ok(ShortConvFacts { taps })
    }

    /// The inner size of the feed-forward part.
    fn ffn_size(&self) -> Result<usize> {
        let size = self.size("sizes.ffn", &self.arch.sizes.ffn)?;
        let Some(rounded) = self.arch.ffn.hf_rounded.as_ref().filter(|_| !self.config.is_gguf()) else {
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

    /// The kind of each layer: from the model's list, the model's period, or the
    /// description's pattern.
    fn spans(&self, layers: usize) -> Result<Vec<LayerKind>> {
        let mixer = &self.arch.mixer;
        if let Some(types) = &mixer.layer_types
            && let Some(value) = self.config.json(&types.hf)
        {
            let list = value.as_array().ok_or_else(|| {
                let value = brief(value);
                Error::new(format!("config.json's '{}' is {value}; a list is needed", types.hf))
            })?;
            if list.len() != layers {
                let have = list.len();
                return Err(Error::new(format!(
                    "config.json's '{}' lists {have} layers; the model has {layers}",
                    types.hf
                )));
            }
            let kind = |word: &serde_json::Value| match word.as_str() {
                Some(word) if types.local.as_deref() == Some(word) => Ok(LayerKind::Local),
                Some(word) if word == types.full => Ok(LayerKind::Full),
                Some(word) if types.conv.as_deref() == Some(word) => Ok(LayerKind::Conv),
                _ => {
                    let word = brief(word);
                    Err(Error::new(format!("config.json's '{}' contains the unknown kind {word}", types.hf)))
                }
            };
            return list.iter().map(kind).collect();
        }
        if let Some(kinds) = self.convolutions(layers)? {
            return Ok(kinds);
        }
        let period = mixer.period.as_ref().map_or(Ok(None), |field| self.config.size(field))?;
        let kind = |index: usize| match period {
            Some(period) if (index + 1).is_multiple_of(period) => LayerKind::Full,
            Some(_) => LayerKind::Local,
            None => mixer.spans[index % mixer.spans.len()],
        };
        if mixer.spans.is_empty() {
            return Err(Error::new(format!("architecture {}: mixer.spans is empty", self.arch.name)));
        }
        let kinds: Vec<LayerKind> = (0..layers).map(kind).collect();
        self.check_spans(&kinds)?;
        Ok(kinds)
    }

    /// Checks that rows see later rows in all layers of a model without a head, and in none of
    /// a model with one.
    fn check_spans(&self, kinds: &[LayerKind]) -> Result<()> {
        let need = self.arch.head.is_none();
        if kinds.iter().all(|kind| (*kind == LayerKind::All) == need) {
            return Ok(());
        }
        let need =
            if need { "without [head] needs 'all' for every layer" } else { "with [head] allows no 'all'" };
        Err(Error::new(format!("architecture {}: mixer.spans {need}", self.arch.name)))
    }

    fn attend(
        &self,
        layer: usize,
        kind: LayerKind,
        heads: &HeadSizes,
        epsilon: f32,
    ) -> Result<AttentionFacts> {
        let mixer = &self.arch.mixer;
        let scale_of = self.scale_of(heads)?;
        if scale_of <= 0.0 {
            return Err(Error::new(format!(
                "scores are divided by the square root of {scale_of}; a positive number is needed"
            )));
        }
        let bias = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.bias"));
        Ok(AttentionFacts {
            heads: heads.heads,
            kv_heads: heads.kv_heads,
            head_size: heads.size,
            span: self.span(kind)?,
            rope: self.rope(kind, heads.size)?,
            qk_norm: mixer.qk_norm.then_some(epsilon),
            biases: Biases { q: bias("q"), k: bias("k"), v: bias("v"), o: bias("o") },
            scale: (1.0 / scale_of.sqrt()) as f32,
            softcap: self.cap(mixer.softcap.as_ref())?,
        })
    }

    /// The number whose inverse square root scales the scores.
    fn scale_of(&self, heads: &HeadSizes) -> Result<f64> {
        let mixer = &self.arch.mixer;
        let Some(field) = &mixer.scale_of else { return Ok(heads.size as f64) };
        let implied = mixer.gguf_scale_of.filter(|_| self.config.is_gguf());
        if let Some(implied) = implied
            && self.config.stated(field)?.is_none()
        {
            return Ok(implied.of(self.layers, heads.width, heads.heads, heads.size) as f64);
        }
        Ok(self.config.number(field)?.unwrap_or(heads.size as f64))
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

    fn span(&self, kind: LayerKind) -> Result<Span> {
        match (kind, &self.arch.sizes.window) {
            (LayerKind::Full, _) => Ok(Span::Full),
            (LayerKind::All, _) => Ok(Span::All),
            (LayerKind::Conv, _) => unreachable!("a short convolution has no span"),
            // A window of null is none, as in transformers' `masking_utils` of Mistral.
            (LayerKind::Local, Some(field)) if self.config.is_null(field) => Ok(Span::Full),
            (LayerKind::Local, Some(field)) => Ok(Span::Window(self.size("sizes.window", field)? as u32)),
            (LayerKind::Local, None) => {
                Err(Error::new(format!("architecture {}: local layers need sizes.window", self.arch.name)))
            }
        }
    }

    fn rope(&self, kind: LayerKind, size: usize) -> Result<Option<Rope>> {
        if self.arch.rope.is_empty() {
            return Ok(None);
        }
        let of_kind = |kind| Some((kind, self.arch.rope.get(&kind)?));
        let shared = of_kind(LayerKind::Full).filter(|_| kind == LayerKind::Local);
        let (kind, stated) = of_kind(kind).or(shared).ok_or_else(|| {
            let name = kind.name();
            Error::new(format!("architecture {}: layers of kind '{name}' need [rope.{name}]", self.arch.name))
        })?;
        let name = kind.name();
        let base = self.required(&format!("rope.{name}.base"), &stated.base)?;
        if base <= 1.0 {
            return Err(Error::new(format!(
                "the base of the rotary frequencies is {base}; a number above 1 is needed"
            )));
        }
        let scaling = stated.scaling.as_ref();
        let factors = rope::factors(self.config, scaling, base, size, |tensor| self.stored.numbers(tensor))?;
        let pairing = match stated.pairing {
            schema::PairingSchema::Halves => Pairing::Halves,
            schema::PairingSchema::Neighbours => Pairing::Neighbours,
        };
        Ok(Some(Rope { name, pairing, base, factors }))
    }

    fn ffn(&self, layer: usize) -> Result<Ffn> {
        let field = &self.arch.ffn.act;
        let word = self.config.word(field)?.ok_or_else(|| self.missing("ffn.act", field))?;
        let act = act(self.arch.ffn.act_names.get(&word).unwrap_or(&word)).ok_or_else(|| {
            let key = self.config.key(field);
            Error::new(format!(
                "{key} is {}; the activations 'silu', 'gelu' and 'gelu_pytorch_tanh' are supported",
                quote(&word)
            ))
        })?;
        let size = self.ffn_size()?;
        let bias = |part: &str| self.stored.has(&format!("layers.{layer}.ffn.{part}.bias"));
        Ok(match self.arch.ffn.kind {
            FfnKind::Gated => Ffn::Gated { size, act, biases: [bias("gate"), bias("up"), bias("down")] },
            FfnKind::Plain => Ffn::Plain { size, act, biases: [bias("up"), bias("down")] },
        })
    }

    fn embed(&self, sizes: &ModelSizes, norm: NormFacts) -> Result<EmbedFacts> {
        let embed = &self.arch.embed;
        let table = |has: bool, name: &str| has.then(|| self.stored.rows(name)).transpose();
        let positions = table(embed.positions, "embed.positions")?;
        if let Some(rows) = positions.filter(|rows| *rows != sizes.context) {
            let (key, context) = (self.config.key(&self.arch.sizes.context), sizes.context);
            return Err(Error::new(format!(
                "{key} is {context}, but the table of positions has {rows} rows; equal numbers are needed"
            )));
        }
        let token_types = table(embed.token_types, "embed.token_types")?;
        if let (Some(field), Some(rows)) = (&embed.token_type_count, token_types) {
            self.check_rows(field, self.config.size(field)?, "the table of token types", rows)?;
        }
        Ok(EmbedFacts {
            scale: embed.scale.map(|EmbedScale::SqrtWidth| (sizes.width as f32).sqrt()),
            token_types,
            positions,
            norm: embed.norm.then_some(norm),
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

    fn head(&self, head: &HeadSchema, norm: NormFacts) -> Result<Head> {
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
        Ok(Head { norm, tied, softcap: self.cap(head.softcap.as_ref())? })
    }
}

/// The activation with this name in configurations.
pub fn act(word: &str) -> Option<Act> {
    match word {
        "silu" | "swish" => Some(Act::Silu),
        "gelu" => Some(Act::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh" => Some(Act::GeluTanh),
        _ => None,
    }
}
