//! What a GGUF with the keys that a writer has made would say of a model: the writer compares it with the model.

use girih_file::{ContainerKind, Metadata, read_required};
use girih_tensor::Result;
use serde_json::Value as Json;

use crate::arch::schema::Scaling;
use crate::arch::{self, Facts, ModelConfig, Stored};
use crate::json::parse_json;
use crate::limits::ModelLimits;
use crate::model::ModelFiles;
use crate::weights::ModelWeights;

impl ModelFiles {
    /// The facts of a GGUF with these keys and the model's weights. `factors` is a tensor of divisors of rotary
    /// frequencies.
    ///
    /// # Errors
    /// When such a file would be refused.
    pub fn facts_in_gguf(
        &self,
        metadata: &Metadata,
        factors: Option<(&str, &[f32])>,
        limits: &ModelLimits,
    ) -> Result<Facts> {
        let config = ModelConfig::Gguf(metadata);
        let known = arch::known(&[])?;
        // Without a key of the model's own description, another one of the same name reads the file.
        let arch = match config.has_gguf(&self.arch().matches.gguf_if) {
            true => self.arch(),
            false => arch::find(&known, &config)?,
        };
        let layers = config.layers(arch, limits)?;
        let kinds = arch::layer_kinds(arch, &config, layers)?;
        let is_tied = self.facts.head.is_some_and(|head| head.tied);
        arch::fill(
            arch,
            &config,
            &kinds,
            &WrittenWeights { weights: &self.weights, is_tied, factors },
            limits,
        )
    }
}

/// The weights of a model as a GGUF has them.
struct WrittenWeights<'a> {
    weights: &'a ModelWeights,
    /// Whether the embedding table is the head, so that the file has no tensor for it.
    is_tied: bool,
    factors: Option<(&'a str, &'a [f32])>,
}

impl Stored for WrittenWeights<'_> {
    fn has(&self, name: &str) -> bool {
        !(self.is_tied && name == "head.weight") && Stored::has(self.weights, name)
    }

    fn rows(&self, name: &str) -> Result<usize> {
        Stored::rows(self.weights, name)
    }

    fn same(&self, a: &str, b: &str) -> Result<bool> {
        Stored::same(self.weights, a, b)
    }

    fn values(&self, name: &str) -> Result<Vec<f32>> {
        Stored::values(self.weights, name)
    }

    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.factors.filter(|(name, _)| *name == tensor).map(|(_, numbers)| numbers.to_vec()))
    }
}

/// YaRN as a `config.json` states it, for the keys of GGUF that state the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatedYarn {
    /// The factor of the context.
    pub factor: f32,
    /// The context before the scaling.
    pub original: u32,
    /// The ends of the ramp, if they are stated.
    pub betas: [Option<f32>; 2],
    /// The scale of all components, if it is stated.
    pub of_all: Option<f32>,
}

impl ModelFiles {
    /// The scaling of rotary frequencies by YaRN that the folder's `config.json` states in the object of this
    /// description; `None` if it states another one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn stated_yarn(&self, scaling: &Scaling, limits: &ModelLimits) -> Result<Option<StatedYarn>> {
        if self.weights.container().kind() == ContainerKind::Gguf || self.embedded().is_some() {
            return Ok(None);
        }
        let json = parse_json(&read_required(self.folder(), "config.json", limits.file.json_bytes)?)?;
        let config = ModelConfig::Hf(&json);
        let is_yarn = |object: &&Json| {
            let mut words = ["rope_type", "type"].iter().filter_map(|key| object.get(key)?.as_str());
            words.next() == Some("yarn")
        };
        let mut objects = scaling.hf.iter().filter_map(|path| config.entry(path));
        let Some(object) = objects.find(is_yarn) else { return Ok(None) };
        let number = |key: &str| object.get(key).and_then(Json::as_f64);
        let original = number("original_max_position_embeddings").or_else(|| {
            let field = scaling.original.as_ref()?;
            field.hf.iter().find_map(|key| config.entry(key)?.as_f64())
        });
        let (Some(factor), Some(original)) = (number("factor"), original) else { return Ok(None) };
        let betas = ["beta_fast", "beta_slow"].map(|key| number(key).map(|beta| beta as f32));
        let of_all = number("mscale_all_dim").map(|scale| scale as f32);
        Ok(Some(StatedYarn { factor: factor as f32, original: original as u32, betas, of_all }))
    }
}
