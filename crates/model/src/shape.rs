//! A model without its weights: what its `config.json` alone determines. It can be compiled
//! and timed, but not run.

use std::io;
use std::path::Path;

use girih_file::read_required;
use girih_graph::{Graph, Key};
use girih_tensor::{DType, Error, ErrorKind, Result};
use serde_json::Value as Json;

use crate::arch::schema::{Arch, Field, LayerSchema, MixerSchema, Relayout, ResidualSchema, pattern};
use crate::arch::{self, ArchOptions, Facts, ModelConfig, ONE, Stored};
use crate::assemble::{self, GraphOptions, WeightTypes};
use crate::json::parse_json;
use crate::limits::ModelLimits;

/// The facts of a model whose weights are absent. They count as stored in bf16.
#[derive(Debug)]
pub struct ModelShape {
    /// Its parameters.
    pub facts: Facts,
    arch: Arch,
}

impl ModelShape {
    /// Reads the `config.json` at `path`, which may have another name.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::NotFound`] when `path` does not exist. When the file is malformed, the architecture is unknown or needs more than
    /// `config.json`, or a key that girih does not read may change the model.
    pub fn open(path: &Path, options: impl Into<ArchOptions>, limits: &ModelLimits) -> Result<ModelShape> {
        let failed = |error: Error| error.of(path.display());
        path.metadata().map_err(|error| {
            let kind =
                if error.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Other };
            failed(Error::with_kind(kind, format!("cannot be opened: {error}")))
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let text = read_required(folder, name, limits.file.json_bytes)?;
        ModelShape::parse(&text, options, limits).map_err(failed)
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// As [`ModelShape::open`].
    pub fn parse(text: &[u8], options: impl Into<ArchOptions>, limits: &ModelLimits) -> Result<ModelShape> {
        let (config, options) = (parse_json(text)?, options.into());
        let source = ModelConfig::Hf(&config);
        let known = arch::known(&options.architectures)?;
        let arch = arch::find(&known, &source)?.clone();
        arch::check_refused(&arch, &source, &options.allow_keys)?;
        let layers = source.layers(&arch, limits)?;
        let kinds = arch::layer_kinds(&arch, &source, layers)?;
        let described = Described { arch: &arch, config: &source, kinds: &kinds };
        let facts = arch::fill(&arch, &source, &kinds, &described, limits)?;
        arch::check_keys(&arch, &source, &facts, &options.allow_keys)?;
        Ok(ModelShape { facts, arch })
    }

    /// The graph of the model for steps up to `key`, as
    /// [`ModelFiles::graph`](crate::ModelFiles::graph).
    ///
    /// # Errors
    /// When a parameter is invalid, or the model has no output of the key's kind.
    pub fn graph(&self, key: Key, options: impl Into<GraphOptions>) -> Result<Graph> {
        assemble::graph(&self.facts, self, key, options.into())
    }
}

impl WeightTypes for ModelShape {
    fn stored_type(&self, name: &str, _: &[usize]) -> Result<DType> {
        let added = self.arch.weights.get(&pattern(name)).and_then(|weight| weight.hf_as);
        let is_float = |relayout| match relayout {
            Relayout::AddOne | Relayout::NegativeExp | Relayout::Transposed => true,
            Relayout::UnpermuteHeads
            | Relayout::UnpermuteKvHeads
            | Relayout::Conv1d
            | Relayout::Flat
            | Relayout::FlatRows
            | Relayout::ByPixel
            | Relayout::SwapOuter => false,
        };
        let computed = name.starts_with("rope.") || name == ONE || added.is_some_and(is_float);
        Ok(if computed { DType::F32 } else { DType::BF16 })
    }

    fn shared_name(&self, name: &str) -> Option<String> {
        let pattern = pattern(name);
        let layer = name.split('.').nth(1)?.parse::<usize>().ok()?;
        let of = self.facts.layers.get(layer)?.block?.of_layer;
        let is_shared = of != layer && self.arch.weights.get(&pattern)?.is_of_block();
        is_shared.then(|| pattern.replace("{i}", &of.to_string()))
    }
}

/// The weights that an architecture and a `config.json` describe.
struct Described<'a> {
    arch: &'a Arch,
    config: &'a ModelConfig<'a>,
    /// The kind of each layer.
    kinds: &'a [&'a str],
}

impl Described<'_> {
    /// Whether a model has a norm or a gate that only some models have, as its parameters say; `None` for other
    /// weights.
    fn has_stated(&self, layer: &LayerSchema, name: &str) -> Option<bool> {
        let is_set = |field: &Field| matches!(self.config.flag(field), Ok(Some(true)));
        if let MixerSchema::Attend(attend) = &layer.mixer
            && let Some(field) = &attend.qk_norm_if
            && [".mixer.q.norm", ".mixer.k.norm"].iter().any(|norm| name.ends_with(norm))
        {
            return Some(is_set(field));
        }
        if let Some(ssm) = layer.mixer.ssm().filter(|_| name.ends_with(".mixer.norm.weight")) {
            return Some(ssm.norm_if.as_ref().is_none_or(is_set));
        }
        if let Some(block) = layer.block.as_ref().filter(|_| name.contains(".adapter.")) {
            return Some(is_set(&block.in_attention));
        }
        if let MixerSchema::Attend(attend) = &layer.mixer
            && let Some(field) = &attend.gate_if
            && name.ends_with(".mixer.gate.weight")
        {
            return Some(is_set(field));
        }
        if let MixerSchema::Attend(attend) = &layer.mixer
            && let Some(latent) = &attend.latent
            && [".weight", ".norm", ".bias"].iter().any(|part| name.ends_with(&format!(".mixer.q_a{part}")))
        {
            let has_bias = || self.has(&name.replace(".q_a.", ".latent."));
            let is_there = matches!(self.config.size(&latent.query_rank), Ok(Some(_)));
            return Some(is_there && (!name.ends_with(".bias") || has_bias()));
        }
        if let MixerSchema::Attend(attend) = &layer.mixer
            && let Some(field) =
                attend.latent.as_ref().and_then(|latent| latent.indexer.as_ref()?.listed.as_ref())
            && name.contains(".mixer.indexer.")
        {
            let listed = field.hf.iter().find_map(|key| self.config.entry(key)?.as_array());
            let index = name.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok());
            let word = listed.zip(index).and_then(|(listed, index)| listed.get(index)?.as_str());
            return Some(word != Some("shared"));
        }
        if let ResidualSchema { parallel: Some(field), shared_norm: true, .. } = &layer.residual
            && name.ends_with(".norms.before_ffn")
        {
            return Some(!is_set(field));
        }
        let further = layer.norms.further.as_ref()?;
        let is_further = further.positions.iter().any(|at| name.ends_with(&format!(".norms.{}", at.name())));
        is_further.then(|| is_set(&further.condition))
    }
}

impl Described<'_> {
    /// Whether a layer has keys and values of its own, in a model whose last layers share them, and whose values are
    /// never keys; `None` for other weights.
    fn has_own_kv(&self, name: &str) -> Option<bool> {
        let field = self.arch.layers.shared_kv.as_ref()?;
        let are_keys = |layer: &LayerSchema| match &layer.mixer {
            MixerSchema::Attend(attend) => attend.values.are_keys_if.is_some(),
            MixerSchema::ShortConv(_)
            | MixerSchema::DeltaRule(_)
            | MixerSchema::Ssm(_)
            | MixerSchema::None {} => false,
        };
        let parts = [".mixer.k.weight", ".mixer.v.weight", ".mixer.k.norm"];
        if !parts.iter().any(|part| name.ends_with(part)) || self.arch.layer.values().any(are_keys) {
            return None;
        }
        let shared = self.config.count(field).ok()?.unwrap_or(0);
        let index = name.split('.').nth(1)?.parse::<usize>().ok()?;
        Some(index.checked_add(shared)? < self.kinds.len())
    }

    /// The size of the latent of queries that `config.json` states.
    fn query_rank(&self) -> Result<Option<usize>> {
        let latents = self.arch.layer.values().filter_map(|layer| match &layer.mixer {
            MixerSchema::Attend(attend) => attend.latent.as_ref(),
            MixerSchema::ShortConv(_)
            | MixerSchema::DeltaRule(_)
            | MixerSchema::Ssm(_)
            | MixerSchema::None {} => None,
        });
        latents.map(|latent| self.config.size(&latent.query_rank)).next().unwrap_or(Ok(None))
    }
}

impl Stored for Described<'_> {
    fn has(&self, name: &str) -> bool {
        let Some(weight) = self.arch.weights.get(&pattern(name)) else { return false };
        let kind = name.split('.').nth(1).and_then(|layer| self.kinds.get(layer.parse::<usize>().ok()?));
        if kind.is_some_and(|kind| !weight.is_of(kind)) {
            return false;
        }
        if !weight.optional {
            return weight.hf.is_some();
        }
        let head = self.arch.head.as_ref().and_then(|head| head.tied.as_ref());
        if name == "head.weight" {
            return head.is_some_and(|tied| matches!(self.config.flag(tied), Ok(Some(false))));
        }
        if let Some(is_there) = self.has_own_kv(name) {
            return is_there;
        }
        if let Some(is_there) = kind.and_then(|kind| self.has_stated(self.arch.layer.get(*kind)?, name)) {
            return is_there;
        }
        self.arch.biases.iter().any(|(key, flag)| {
            let stated = self.config.entry(key).and_then(Json::as_bool).unwrap_or(flag.default);
            let is_of = |part: &String| {
                let rest = name.strip_suffix(".bias").and_then(|name| name.strip_suffix(part.as_str()));
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            stated && flag.of.iter().any(is_of)
        })
    }

    fn rows(&self, name: &str) -> Result<usize> {
        let stated = match name {
            "embed.table" => self.config.size(&self.arch.vocabulary())?,
            _ if name.ends_with(".mixer.q_a.weight") => self.query_rank()?,
            _ if name.ends_with(".input.table") => {
                let field = self.arch.embed.per_layer.as_ref().and_then(|own| own.vocabulary.as_ref());
                field.map_or(Ok(None), |field| self.config.size(field))?
            }
            _ => None,
        };
        stated.ok_or_else(|| {
            Error::new(format!(
                "config.json does not state the rows of '{name}': open the model with its weights"
            ))
        })
    }

    fn values(&self, name: &str) -> Result<Vec<f32>> {
        Err(Error::new(format!(
            "config.json does not state the values of '{name}': open the model with its weights"
        )))
    }

    fn same(&self, _: &str, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn numbers(&self, _: &str) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }
}
