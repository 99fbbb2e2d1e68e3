//! Writes a model's facts as GGUF keys: the inverse of `arch/fill.rs`, driven by
//! the same fields of the architecture's description.

use girih_file::{Metadata, MetadataValue};
use girih_graph::Span;
use girih_model::arch::schema::{Arch, DefaultValue, Field, LayerKind, RopeSchema};
use girih_model::arch::{AttentionFacts, Facts, Head, LayerFacts, Rope, act};
use girih_tensor::{Error, Result};

/// The keys and the tensor of a GGUF file that state a model's facts.
pub(super) struct GgufKeys {
    pub metadata: Metadata,
    /// A tensor of rotary divisors: its name and values.
    pub factors: Option<(String, Vec<f32>)>,
    /// The facts that llama.cpp reads differently.
    pub warnings: Vec<String>,
}

/// The keys for `facts`.
///
/// # Errors
/// When a fact differs from the architecture's default and has no key.
pub(super) fn keys(arch: &Arch, facts: &Facts, head: &Head) -> Result<GgufKeys> {
    let keys = GgufKeys { metadata: Metadata::new(), factors: None, warnings: Vec::new() };
    let mut writer = KeyWriter { arch, facts, keys };
    writer.sizes()?;
    writer.norms_and_head(head)?;
    writer.spans()?;
    writer.scores()?;
    writer.ropes()?;
    writer.act()?;
    Ok(writer.keys)
}

/// Attention of a layer.
pub(super) fn attend(layer: &LayerFacts) -> &AttentionFacts {
    layer.mixer.attention().expect("models with other mixers are refused before their keys are written")
}

struct KeyWriter<'a> {
    arch: &'a Arch,
    facts: &'a Facts,
    keys: GgufKeys,
}

impl<'a> KeyWriter<'a> {
    fn no_key(&self, what: &str) -> Error {
        Error::new(format!("architecture {} has no GGUF key for {what}", self.arch.name))
    }

    fn put(&mut self, what: &str, field: &Field, value: MetadataValue) -> Result<()> {
        let key = field.gguf.as_ref().ok_or_else(|| self.no_key(what))?;
        if field.llama_cpp_ignores {
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

    fn put_size(&mut self, what: &str, field: &Field, size: usize) -> Result<()> {
        let number = u32::try_from(size)
            .map_err(|_| Error::new(format!("{what} is {size}; GGUF holds at most {}", u32::MAX)))?;
        self.put(what, field, MetadataValue::U32(number))
    }

    fn sizes(&mut self) -> Result<()> {
        let (arch, facts) = (self.arch, self.facts);
        let layer = facts.layers.first().ok_or_else(|| Error::new("the model has no layers"))?;
        let attend = attend(layer);
        self.put_size("sizes.width", &arch.sizes.width, facts.sizes.width)?;
        self.put_size("sizes.layers", &arch.sizes.layers, facts.layers.len())?;
        self.put_size("sizes.heads", &arch.sizes.heads, attend.heads)?;
        self.put_size("sizes.kv_heads", &arch.sizes.kv_heads, attend.kv_heads)?;
        self.put_size("sizes.head_size", &arch.sizes.head_size, attend.head_size)?;
        self.put_size("sizes.ffn", &arch.sizes.ffn, layer.ffn.size())?;
        self.put_size("sizes.context", &arch.sizes.context, facts.sizes.context)?;
        match &arch.sizes.vocabulary {
            Some(field) => self.put_size("sizes.vocabulary", field, facts.sizes.vocabulary),
            None => Ok(()),
        }
    }

    fn norms_and_head(&mut self, head: &Head) -> Result<()> {
        let arch = self.arch;
        self.put("norms.epsilon", &arch.norms.epsilon, MetadataValue::F32(head.norm.epsilon))?;
        let softcap = arch.head.as_ref().and_then(|head| head.softcap.as_ref());
        match (softcap, head.softcap) {
            (Some(field), Some(cap)) => self.put("head.softcap", field, MetadataValue::F32(cap)),
            _ => Ok(()),
        }
    }

    /// The window, and the period of full layers if it differs from the
    /// architecture's.
    fn spans(&mut self) -> Result<()> {
        let (arch, layers) = (self.arch, &self.facts.layers);
        let has_local_rope = |attend: &AttentionFacts| {
            attend.rope.as_ref().is_some_and(|rope| rope.name == LayerKind::Local.name())
        };
        if layers.iter().map(attend).any(|attend| attend.span == Span::Full && has_local_rope(attend)) {
            return Err(Error::new(
                "the model's local layers have no window, which GGUF cannot state; keep it in safetensors",
            ));
        }
        let windows = layers.iter().find_map(|layer| match attend(layer).span {
            Span::Window(window) => Some(window),
            Span::Full | Span::All => None,
        });
        if let (Some(field), Some(window)) = (&arch.sizes.window, windows) {
            self.put("sizes.window", field, MetadataValue::U32(window))?;
        }
        let is_condition = |field: &Field| field.gguf.iter().any(|key| arch.matches.gguf_if.contains(key));
        if windows.is_none() && arch.sizes.window.as_ref().is_some_and(is_condition) {
            return Ok(()); // the file is one of another architecture, whose layers are full
        }
        let spans = &arch.mixer.spans;
        let is_full = |index: usize| attend(&layers[index]).span == Span::Full;
        let usual = |index: usize| spans[index % spans.len()] == LayerKind::Full;
        if (0..layers.len()).all(|index| is_full(index) == usual(index)) {
            return Ok(());
        }
        let fits = |period: &usize| {
            (0..layers.len()).all(|index| is_full(index) == (index + 1).is_multiple_of(*period))
        };
        let period =
            (1..=layers.len() + 1).find(fits).ok_or_else(|| self.no_key("the kinds of its layers"))?;
        let field = arch.mixer.period.as_ref().ok_or_else(|| self.no_key("the period of its full layers"))?;
        self.put_size("mixer.period", field, period)
    }

    fn scores(&mut self) -> Result<()> {
        let mixer = &self.arch.mixer;
        let Some(attend) = self.facts.layers.first().map(attend) else { return Ok(()) };
        if let (Some(field), Some(cap)) = (&mixer.softcap, attend.softcap) {
            self.put("mixer.softcap", field, MetadataValue::F32(cap))?;
        }
        let scale = |of: f32| (1.0 / f64::from(of).sqrt()) as f32;
        let (layers, width) = (self.facts.layers.len(), self.facts.sizes.width);
        // What llama.cpp takes for such a model, as it reads no key.
        let implied = mixer
            .gguf_scale_of
            .map_or(attend.head_size, |rule| rule.of(layers, width, attend.heads, attend.head_size));
        if attend.scale == scale(implied as f32) {
            return Ok(());
        }
        let field = mixer.scale_of.as_ref().ok_or_else(|| self.no_key("the scale of its scores"))?;
        // Prefers an integer if it gives the same scale, because most models have
        // one.
        let exact = (1.0 / f64::from(attend.scale).powi(2)) as f32;
        let of = if scale(exact.round()) == attend.scale { exact.round() } else { exact };
        self.keys.warnings.push(format!(
            "scores are divided by the square root of {of}; llama.cpp does not read this key, takes {implied} for \
             {layers} layers, and gives other results"
        ));
        self.put("mixer.scale_of", field, MetadataValue::F32(of))
    }

    fn ropes(&mut self) -> Result<()> {
        let arch = self.arch;
        let used: Vec<(&RopeSchema, &Rope)> =
            arch.rope.iter().filter_map(|(kind, rope)| Some((rope, self.rope_of(kind.name())?))).collect();
        for (rope, facts) in &used {
            self.check_shared(rope, facts, &used)?;
            self.put(&format!("rope.{}.base", facts.name), &rope.base, MetadataValue::F32(facts.base))?;
            if let Some(&first) = facts.factors.first() {
                self.factors(rope, facts, first)?;
            }
        }
        Ok(())
    }

    /// The rotary embedding of the layers of a kind, if there are any.
    fn rope_of(&self, name: &str) -> Option<&'a Rope> {
        let layers = &self.facts.layers;
        layers.iter().filter_map(|layer| attend(layer).rope.as_ref()).find(|rope| rope.name == name)
    }

    /// Checks that kinds of layers that share the keys or the tensor of their scaling also share
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
            if let Some(shared) = shared.filter(|_| facts.factors != other_facts.factors) {
                return Err(Error::new(format!(
                    "GGUF's '{shared}' scales the rotary frequencies of {} and of {} layers, which differ; equal \
                     ones are needed",
                    facts.name, other_facts.name
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
                let name = facts.name;
                Err(self.no_key(&format!("the scaling of its rotary frequencies ({name} layers)")))
            }
        }
    }

    fn act(&mut self) -> Result<()> {
        let field = &self.arch.ffn.act;
        let usual = match &field.default {
            Some(DefaultValue::Word(word)) => act(word),
            _ => None,
        };
        if usual == Some(self.facts.layers[0].ffn.act()) {
            Ok(())
        } else {
            Err(self.no_key("its activation"))
        }
    }
}
