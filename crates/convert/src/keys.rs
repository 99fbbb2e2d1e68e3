//! Writes a model's facts as GGUF keys, by the parameters of the architecture's description, from whose
//! fields `fill` reads them again. What follows from several facts is derived here: the period of layers, the
//! scale of scores, the scaling of rotary frequencies.

use std::collections::BTreeMap;

use girih_file::{Metadata, MetadataArray, MetadataValue};
use girih_graph::Span;
use girih_model::StatedYarn;
use girih_model::arch::schema::{
    Arch, DefaultValue, Field, GgufKinds, MixerSchema, RopeSchema, SpanSchema, WrittenKey, WrittenSize,
    WrittenValue,
};
use girih_model::arch::{ArchParameter, FactValue, Facts, LayerFacts, Rope};
use girih_tensor::{Error, Result};

/// The kind of embedding and head, which GGUF states by the tensors that it has.
const TIED: &str = "head.tied";

/// The end of the names of kinds of layers without experts.
const DENSE: &str = "_dense";

/// Parameters that a GGUF need not state, each with the parameter that it follows from.
const FOLLOWING: [(&str, &str); 3] = [
    ("mixer.ssm.head_size", "mixer.ssm.inner"),
    ("mixer.value_size", "mixer.values"),
    ("mixer.latent.nope", "mixer.head_size"),
];

/// Values that a file without the key has.
const IMPLIED: [(&str, FactValue); 1] = [("mixer.ssm.least", FactValue::Number(0.0))];

/// The keys and the tensor of a GGUF file that state a model's facts.
pub(super) struct GgufKeys {
    pub metadata: Metadata,
    /// A tensor of rotary divisors: its name and values.
    pub factors: Option<(String, Vec<f32>)>,
    /// The facts that llama.cpp reads differently.
    pub warnings: Vec<String>,
}

/// The keys for `facts`, of a model whose tables of rotary position embedding are scaled by these, if by YaRN.
///
/// # Errors
/// When a fact differs from the architecture's default and has no key.
pub(super) fn keys(arch: &Arch, facts: &Facts, yarns: &BTreeMap<String, StatedYarn>) -> Result<GgufKeys> {
    let keys = GgufKeys { metadata: Metadata::new(), factors: None, warnings: Vec::new() };
    let mut writer = KeyWriter { arch, facts, yarns, keys };
    for parameter in arch.parameters() {
        writer.parameter(&parameter)?;
    }
    writer.kinds()?;
    writer.scores()?;
    writer.ropes()?;
    writer.written()?;
    Ok(writer.keys)
}

struct KeyWriter<'a> {
    arch: &'a Arch,
    facts: &'a Facts,
    yarns: &'a BTreeMap<String, StatedYarn>,
    keys: GgufKeys,
}

impl<'a> KeyWriter<'a> {
    fn no_key(&self, what: &str) -> Error {
        Error::new(format!("architecture {} has no GGUF key for {what}", self.arch.name))
    }

    fn put(&mut self, what: &str, field: &Field, value: MetadataValue) -> Result<()> {
        // What a file without the key has.
        let is_implied = match (&value, &field.default) {
            (MetadataValue::Bool(flag), Some(DefaultValue::Flag(default))) => flag == default,
            _ => false,
        };
        let key = field.gguf.as_ref().ok_or_else(|| self.no_key(what))?;
        if field.llama_cpp_ignores && !is_implied {
            self.keys.warnings.push(format!("llama.cpp does not read '{key}' and may give other results"));
        }
        for key in std::iter::once(key).chain(&field.gguf_also) {
            self.put_once(key, value.clone())?;
        }
        Ok(())
    }

    /// Writes a key that two parameters may share, if their values are equal.
    fn put_once(&mut self, key: &str, value: MetadataValue) -> Result<()> {
        match self.keys.metadata.value(key) {
            Some(other) if *other == value => Ok(()),
            Some(other) => Err(Error::new(format!(
                "GGUF's '{key}' states two parameters of architecture {}, which are {other} and {value}; \
                 equal values are needed",
                self.arch.name
            ))),
            None => self.keys.metadata.insert(key, value),
        }
    }

    /// Writes a parameter's values: one, or a list with one for each layer.
    fn parameter(&mut self, parameter: &ArchParameter<'_>) -> Result<()> {
        let ArchParameter { name, field, .. } = parameter;
        let values = parameter.values(self.facts);
        if field.gguf.is_none() && self.follows(name) {
            return Ok(());
        }
        let Some((_, first)) = values.first().copied() else { return Ok(()) };
        // A list by which kinds of layers are told apart has an entry of each layer.
        let lists = self.arch.layers.gguf_listed.iter().flat_map(GgufKinds::lists);
        let kinds: Vec<&String> = lists.map(|listed| &listed.gguf).collect();
        let is_one = values.iter().all(|(_, value)| *value == first)
            && field.gguf.as_ref().is_none_or(|key| !kinds.contains(&key));
        match &field.gguf {
            None if IMPLIED
                .iter()
                .any(|(known, value)| name.ends_with(known) && is_one && *value == first) =>
            {
                Ok(())
            }
            None if name == TIED || is_one && is_default(first, field.default.as_ref()) => Ok(()),
            None => Err(self.no_key(name)),
            Some(_) if is_one => self.put(name, field, stored(name, first)?),
            Some(_) if field.by_layer => {
                let mut sizes = vec![0; self.facts.layers.len()];
                for (layer, value) in values {
                    if let (Some(layer), MetadataValue::U32(size)) = (layer, stored(name, value)?) {
                        sizes[layer] = size;
                    }
                }
                self.put(name, field, MetadataValue::Array(MetadataArray::U32(sizes)))
            }
            Some(key) => Err(Error::new(format!(
                "GGUF's '{key}' holds one {name} for all layers of architecture {}, but the model's differ; keep it in \
                 safetensors",
                self.arch.name
            ))),
        }
    }

    /// Whether a parameter without a key follows from another one, which has a key.
    fn follows(&self, name: &str) -> bool {
        let has_key = |from: &str| {
            self.arch.parameters().iter().any(|one| one.name.ends_with(from) && one.field.gguf.is_some())
        };
        FOLLOWING.iter().any(|(known, from)| name.ends_with(known) && has_key(from))
    }

    /// A size that follows from facts; `None` if no layer has what it is of.
    fn size(&self, size: WrittenSize) -> Option<usize> {
        let latent = self.facts.layers.iter().find_map(|layer| layer.mixer.attention()?.latent)?;
        Some(match size {
            WrittenSize::LatentRow => latent.rank + latent.rope,
            WrittenSize::Latent => latent.rank,
        })
    }

    /// The keys that only other programs read.
    fn written(&mut self) -> Result<()> {
        self.axes()?;
        let arch = self.arch;
        for WrittenKey { gguf, is } in arch.written.values() {
            let Some(gguf) = gguf else { continue };
            if self.keys.metadata.value(gguf).is_some() {
                continue;
            }
            let value = match is {
                WrittenValue::Flag(flag) => MetadataValue::Bool(*flag),
                WrittenValue::Count(number) => MetadataValue::U32(*number),
                WrittenValue::List(list) => MetadataValue::Array(MetadataArray::U32(list.clone())),
                WrittenValue::Size(size) => match self.size(*size) {
                    None => continue,
                    Some(size) => stored(gguf, FactValue::Size(size))?,
                },
            };
            self.put_once(gguf, value)?;
        }
        Ok(())
    }

    /// The numbers of pairs that turn by each axis of positions; llama.cpp's list has a fourth one.
    fn axes(&mut self) -> Result<()> {
        for (table, rope) in &self.arch.rope {
            let Some(key) = rope.axes.as_ref().and_then(|axes| axes.gguf.as_ref()) else { continue };
            let ropes = self.facts.layers.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref());
            let axes = ropes.filter(|rope| rope.table == *table).find_map(|rope| rope.axes);
            let Some(axes) = axes else { continue };
            let numbers = axes.sections.iter().map(|count| *count as i32).chain([0]).collect();
            self.put_once(key, MetadataValue::Array(MetadataArray::I32(numbers)))?;
        }
        Ok(())
    }

    /// The period of the last kind of layers if the kinds are not those of the pattern.
    fn kinds(&mut self) -> Result<()> {
        let (arch, layers) = (self.arch, &self.facts.layers);
        for layer in layers {
            let MixerSchema::Attend(schema) = &arch.layer(&layer.kind)?.mixer else { continue };
            let SpanSchema::Window(field) = &schema.span else { continue };
            // Without such a key, the file is one of another architecture, whose layers are full.
            let is_condition = field.gguf.iter().any(|key| arch.matches.gguf_if.contains(key));
            let is_full = layer.mixer.attention().is_some_and(|attend| attend.span == Span::Full);
            // What a file without the key has.
            let is_default = field.default.as_ref() == Some(&DefaultValue::Word("full".to_owned()));
            if is_full && !is_condition && !is_default {
                return Err(Error::new(format!(
                    "the model's {} layers have no window, which GGUF cannot state; keep it in safetensors",
                    layer.kind
                )));
            }
        }
        self.dense_layers()?;
        if let Some(GgufKinds { gguf, other, zero: _ }) = &arch.layers.gguf_listed {
            let is_size = arch.parameters().iter().any(|one| one.field.gguf.as_ref() == Some(gguf));
            let is_other = |layer: &LayerFacts| layer.kind.trim_end_matches(DENSE) == other;
            let list = || MetadataArray::Bool(layers.iter().map(is_other).collect());
            return if is_size { Ok(()) } else { self.put_once(gguf, MetadataValue::Array(list())) };
        }
        let pattern = arch.pattern();
        let is = |index: usize, kind: &str| layers[index].kind.trim_end_matches(DENSE) == kind;
        if (0..layers.len()).all(|index| is(index, pattern[index % pattern.len()])) {
            return Ok(());
        }
        let (first, last) = (pattern[0], pattern[pattern.len() - 1]);
        let fits = |period: &usize| {
            (0..layers.len())
                .all(|index| is(index, if (index + 1).is_multiple_of(*period) { last } else { first }))
        };
        let period =
            (1..=layers.len() + 1).find(fits).ok_or_else(|| self.no_key("the kinds of its layers"))?;
        let field = arch.layers.period.as_ref().ok_or_else(|| self.no_key("layers.period"))?;
        self.put("layers.period", field, stored("layers.period", FactValue::Size(period))?)
    }

    /// The number of first layers without experts, in a model with experts.
    fn dense_layers(&mut self) -> Result<()> {
        let (arch, layers) = (self.arch, &self.facts.layers);
        let has_dense = arch.layer.keys().any(|kind| kind.ends_with(DENSE));
        if !has_dense || layers.iter().all(|layer| layer.ffn.experts().is_none()) {
            return Ok(());
        }
        let first = layers.iter().take_while(|layer| layer.ffn.experts().is_none()).count();
        if layers[first..].iter().any(|layer| layer.ffn.experts().is_none()) {
            return Err(self.no_key("layers without experts behind others"));
        }
        match &arch.layers.dense.first {
            Some(field) => self.put("layers.dense.first", field, MetadataValue::U32(first as u32))?,
            None if first == 0 => {}
            None => return Err(self.no_key("layers without experts")),
        }
        // All others have experts.
        match arch.layers.dense.step.as_ref().filter(|step| step.gguf.is_some()) {
            Some(step) => self.put("layers.dense.step", step, MetadataValue::U32(1)),
            None => Ok(()),
        }
    }

    /// The number whose inverse square root scales the scores, where GGUF implies another one.
    fn scores(&mut self) -> Result<()> {
        let scale = |of: f32| (1.0 / f64::from(of).sqrt()) as f32;
        let (layers, width) = (self.facts.layers.len(), self.facts.sizes.width);
        for layer in &self.facts.layers {
            let MixerSchema::Attend(schema) = &self.arch.layer(&layer.kind)?.mixer else { continue };
            let Some(attend) = layer.mixer.attention() else { continue };
            // The scale itself is a key, which was written as a parameter.
            if schema.scale.as_ref().is_some_and(|field| field.gguf.is_some()) {
                continue;
            }
            // What llama.cpp takes for such a model, as it reads no key.
            let implied = schema
                .gguf_scale_of
                .map_or(attend.head_size, |rule| rule.of(layers, width, attend.heads, attend.head_size));
            // The scaling of rotary frequencies may have a part in it.
            let score = attend.rope.as_ref().and_then(|rope| rope.score);
            let usual = scale(implied as f32);
            let is_scaled = |by: f32| (attend.scale / by - usual).abs() <= 2.0 * f32::EPSILON * usual;
            if attend.scale == usual || score.is_some_and(is_scaled) {
                continue;
            }
            let field = schema.scale_of.as_ref().ok_or_else(|| self.no_key("mixer.scale_of"))?;
            // Prefers an integer if it gives the same scale, because most models have
            // one.
            let exact = (1.0 / f64::from(attend.scale).powi(2)) as f32;
            let of = if scale(exact.round()) == attend.scale { exact.round() } else { exact };
            let warning = format!(
                "scores are divided by the square root of {of}; llama.cpp does not read this key, takes {implied} for \
                 {layers} layers, and gives other results"
            );
            if !self.keys.warnings.contains(&warning) {
                self.keys.warnings.push(warning);
            }
            self.put("mixer.scale_of", field, MetadataValue::F32(of))?;
        }
        Ok(())
    }

    /// The scaling of each table of rotary position embedding that layers use.
    fn ropes(&mut self) -> Result<()> {
        let used: Vec<(&RopeSchema, &Rope)> = self
            .arch
            .rope
            .iter()
            .filter_map(|(table, schema)| Some((schema, self.rope_of(table)?)))
            .collect();
        for (schema, facts) in &used {
            self.check_shared(schema, facts, &used)?;
            if let Some(context) = facts.context {
                return Err(Error::new(format!(
                    "the model's rotary frequencies hold for {context} positions, and others for longer texts, which girih \
                     does not write to GGUF; keep it in safetensors"
                )));
            }
            if self.yarn(schema, facts)? {
                continue;
            }
            if let Some(&first) = facts.factors.first() {
                self.factors(schema, facts, first)?;
            }
            if let Some(factor) = facts.factor {
                let prefix = schema.scaling.as_ref().and_then(|scaling| scaling.gguf.as_deref());
                let prefix = prefix.ok_or_else(|| self.no_key("the factor of its rotated components"))?;
                self.put_once(&format!("{prefix}.attn_factor"), MetadataValue::F32(factor))?;
            }
        }
        Ok(())
    }

    /// Writes the scaling by YaRN of a table without a tensor of divisors; returns whether it is one. Whether the keys
    /// state the facts is checked when all are written.
    fn yarn(&mut self, schema: &RopeSchema, facts: &Rope) -> Result<bool> {
        let Some(scaling) = schema.scaling.as_ref().filter(|scaling| scaling.factors.is_none()) else {
            return Ok(false);
        };
        let (Some(prefix), Some(yarn)) = (&scaling.gguf, self.yarns.get(&facts.table).copied()) else {
            return Ok(false);
        };
        let [fast, slow] = yarn.betas;
        // llama.cpp's converter writes a tenth of it.
        let tenth = yarn.of_all.map(|scale| (0.1 * f64::from(scale)) as f32);
        let numbers = [
            ("factor", Some(yarn.factor)),
            ("yarn_beta_fast", fast),
            ("yarn_beta_slow", slow),
            ("yarn_log_multiplier", tenth.filter(|_| scaling.scales_scores)),
        ];
        self.put_once(&format!("{prefix}.type"), MetadataValue::String("yarn".to_owned()))?;
        self.put_once(&format!("{prefix}.original_context_length"), MetadataValue::U32(yarn.original))?;
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            self.put_once(&format!("{prefix}.{name}"), MetadataValue::F32(number))?;
        }
        Ok(true)
    }

    /// The facts of a table of rotary position embedding, if a layer uses it.
    fn rope_of(&self, table: &str) -> Option<&'a Rope> {
        let attention = self.facts.layers.iter().filter_map(|layer| layer.mixer.attention());
        attention.filter_map(|attend| attend.rope.as_ref()).find(|rope| rope.table == table)
    }

    /// Checks that tables that share the keys or the tensor of their scaling also share
    /// its values.
    fn check_shared(&self, rope: &RopeSchema, facts: &Rope, used: &[(&RopeSchema, &Rope)]) -> Result<()> {
        let places = |rope: &RopeSchema| {
            let scaling = rope.scaling.as_ref();
            scaling.map_or([None, None], |scaling| [scaling.gguf.clone(), scaling.factors.clone()])
        };
        for (other, other_facts) in used {
            let both = places(rope).into_iter().zip(places(other));
            let shared =
                both.into_iter().find_map(|(one, other)| one.filter(|one| Some(one) == other.as_ref()));
            let is_equal = facts.factors == other_facts.factors && facts.factor == other_facts.factor;
            if let Some(shared) = shared.filter(|_| !is_equal) {
                return Err(Error::new(format!(
                    "GGUF's '{shared}' scales the rotary frequencies of {} and of {} layers, which differ; equal \
                     ones are needed",
                    facts.table, other_facts.table
                )));
            }
        }
        Ok(())
    }

    /// Writes the divisors of the frequencies of one kind of layer; `first` is their first one.
    fn factors(&mut self, rope: &RopeSchema, facts: &Rope, first: f32) -> Result<()> {
        let scaling = rope.scaling.as_ref();
        let prefix = scaling.and_then(|scaling| scaling.gguf.as_deref());
        let tensor = scaling.and_then(|scaling| scaling.factors.as_deref());
        match (prefix, tensor) {
            (Some(prefix), _) if facts.factors.iter().all(|factor| *factor == first) => {
                self.put_once(&format!("{prefix}.type"), MetadataValue::String("linear".to_owned()))?;
                self.put_once(&format!("{prefix}.factor"), MetadataValue::F32(first))
            }
            (_, Some(tensor)) => {
                self.keys.factors = Some((tensor.to_owned(), facts.factors.clone()));
                Ok(())
            }
            _ => {
                let name = &facts.table;
                Err(self.no_key(&format!("the scaling of its rotary frequencies ({name} layers)")))
            }
        }
    }
}

/// A value as GGUF stores it.
fn stored(name: &str, value: FactValue) -> Result<MetadataValue> {
    match value {
        FactValue::Size(size) => u32::try_from(size)
            .map(MetadataValue::U32)
            .map_err(|_| Error::new(format!("{name} is {size}; GGUF holds at most {}", u32::MAX))),
        FactValue::Number(number) => Ok(MetadataValue::F32(number)),
        FactValue::Word(word) => Ok(MetadataValue::String(word.to_owned())),
        FactValue::Flag(flag) => Ok(MetadataValue::Bool(flag)),
    }
}

/// Whether a value is the default of its field.
fn is_default(value: FactValue, default: Option<&DefaultValue>) -> bool {
    match (value, default) {
        (FactValue::Size(size), Some(DefaultValue::Number(number))) => size as f64 == *number,
        (FactValue::Number(one), Some(DefaultValue::Number(number))) => one == *number as f32,
        (FactValue::Word(one), Some(DefaultValue::Word(word))) => one == word,
        (FactValue::Flag(one), Some(DefaultValue::Flag(flag))) => one == *flag,
        _ => false,
    }
}
