//! Architectures as data: parses the descriptions in `archs/`, finds the one
//! that matches a model, and makes facts from it and the model's parameters.

mod attend_schema;
mod based_on;
mod block_facts;
mod block_places;
mod block_schema;
mod config;
mod delta_facts;
mod delta_schema;
mod draft_model;
mod draft_schema;
mod facts;
mod ffn_schema;
mod field;
mod fill;
mod fill_block;
mod fill_delta;
mod fill_experts;
mod fill_latent;
mod fill_rope;
mod fill_ssm;
mod fill_streams;
mod fill_tower;
mod fill_values;
mod key_rules;
mod keys;
mod layer_kinds;
mod layers_schema;
mod norm_facts;
mod norm_kind;
mod parameters;
mod q4nx_schema;
mod rope;
mod rope_axes;
mod rope_names;
mod rope_scaling;
mod rope_schema;
pub mod schema;
mod shipped;
mod ssm_facts;
mod ssm_schema;
mod streams_facts;
mod streams_schema;
mod suggest;
mod tower_facts;
mod tower_schema;
mod value;
mod weight_schema;
mod written_schema;

pub use block_facts::BlockFacts;
pub(crate) use block_places::{BlockPlace, block_places};
pub use config::ModelConfig;
pub use delta_facts::DeltaRuleFacts;
pub(crate) use draft_model::as_model;
pub use draft_schema::HiddenState;
pub use facts::{
    AssistantFacts, AttentionFacts, Biases, EmbedFacts, ExpertsFacts, Facts, Ffn, Head, IndexerFacts,
    LatentFacts, LayerFacts, LayerInput, Mixer, ModelSizes, NormFacts, Norms, OutputGate, PlainAct,
    PoolingFacts, QkNormFacts, Residual, Rope, ShortConvFacts, ValuesFacts, act,
};
pub(crate) use fill::{Stored, fill};
use keys::TEXT_MODEL_TYPE;
pub use keys::{PROJECTOR_TYPES, SharedKeys, shared_keys};
pub(crate) use keys::{check_keys, check_refused};
pub(crate) use layer_kinds::layer_kinds;
pub use parameters::{ArchParameter, FactValue};
pub use rope::GGUF_SCALING;
pub(crate) use rope::frequencies;
pub use schema::{Arch, NormKind, NormPosition, QkNorm};
pub use shipped::text_of as shipped_text;
use shipped::{SHIPPED, TOWERS};
pub use ssm_facts::{SsmFacts, SsmNormFacts};
pub use streams_facts::{ONE, STREAMS, StreamsFacts};
pub use suggest::{Suggestion, suggest};
pub(crate) use tower_facts::PLACE_AXES;
pub use tower_facts::{
    GroupTimes, ImageGrid, ImageTokens, LinearBounds, MAX_PATCHES, ProjectorFacts, TowerFacts,
};

use std::collections::BTreeSet;
use std::sync::LazyLock;

use girih_file::{quote, shorten, similar};
use girih_tensor::{Error, ErrorKind, Result};

/// The maximum number of a model's architectures that an error names.
const NAMED: usize = 5;

/// The maximum number of known architectures that an error names.
const SIMILAR: usize = 3;

/// All known architectures: `given`, then the shipped ones, which a process parses once.
///
/// # Errors
/// When a shipped description is malformed, which a test excludes.
pub fn known(given: &[Arch]) -> Result<Vec<&Arch>> {
    static PARSED: LazyLock<Result<Vec<Arch>>> =
        LazyLock::new(|| SHIPPED.iter().map(|(_, text)| schema::parse(text)).collect());
    let shipped = PARSED.as_ref().map_err(Error::clone)?;
    Ok(given.iter().chain(shipped).collect())
}

/// The descriptions of image towers.
///
/// # Errors
/// When one is malformed, which a test excludes.
pub fn towers() -> Result<Vec<Arch>> {
    TOWERS.iter().map(|(_, text)| schema::parse(text)).collect()
}

/// How a model's files are interpreted.
#[derive(Clone, Debug, Default)]
pub struct ArchOptions {
    /// Descriptions of architectures that are tried before the shipped ones.
    pub architectures: Vec<Arch>,
    /// Keys of the model that are ignored, although they may change it: paths of `config.json`
    /// with dots between the levels, or keys of GGUF.
    pub allow_keys: Vec<String>,
}

impl From<Vec<Arch>> for ArchOptions {
    fn from(architectures: Vec<Arch>) -> ArchOptions {
        ArchOptions { architectures, allow_keys: Vec::new() }
    }
}

/// The architecture of a model.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when no description matches; the error names similar ones. When the
/// model's `model_type`, by which transformers chooses its code, is another one than the description's.
pub fn find<'a>(known: &[&'a Arch], config: &ModelConfig<'_>) -> Result<&'a Arch> {
    let names = config.architectures()?;
    let found = || {
        known.iter().copied().filter(|arch| {
            let matches = if config.is_gguf() { &arch.matches.gguf } else { &arch.matches.hf };
            let has_keys = config.has_gguf(&arch.matches.gguf_if) && config.has_hf(&arch.matches.hf_if);
            has_keys && names.iter().any(|name| matches.contains(name))
        })
    };
    let first = found().next().ok_or_else(|| unknown(&names, known, config))?;
    // Some models of one class have a `model_type` of their own.
    if let Some(found) = found().find(|arch| check_model_type(arch, config).is_ok()) {
        return Ok(found);
    }
    check_model_type(first, config)?;
    Ok(first)
}

/// Parts of the names of models that draft for another one in a way that girih does not have, and what they read.
const ASSISTANTS: [(&str, &str); 3] = [
    ("MuseGlimmerAssistant", "hidden states of several layers"),
    ("Eagle3", "hidden states of several layers"),
    ("EAGLE3", "hidden states of several layers"),
];

/// The error of a model that no description matches.
fn unknown(names: &[String], known: &[&Arch], config: &ModelConfig<'_>) -> Error {
    for (part, reads) in ASSISTANTS {
        if let Some(name) = names.iter().find(|name| name.contains(part)) {
            let name = quote(name);
            let sentence = format!(
                "{name} drafts by {reads} of another model, which girih does not pass on; draft by 'lookup', 'mtp' or a \
                 smaller model"
            );
            return Error::with_kind(ErrorKind::Refused, sentence);
        }
    }
    let all =
        known.iter().flat_map(|arch| if config.is_gguf() { &arch.matches.gguf } else { &arch.matches.hf });
    let mut named: Vec<&str> = Vec::new();
    for name in names.iter().take(NAMED) {
        let stems: BTreeSet<&str> = all.clone().map(|name| family(name)).collect();
        for stem in similar(family(name), stems) {
            let of_stem = all.clone().map(String::as_str).find(|known| family(known) == stem);
            named.extend(of_stem.filter(|known| !named.contains(known)));
        }
    }
    let of_model = shorten(quoted(names.iter().take(NAMED).map(String::as_str)));
    let similar = match &named[..] {
        [] => String::new(),
        names => format!("; similar ones are {}", quoted(names.iter().copied().take(SIMILAR))),
    };
    let sentence = format!(
        "unknown architecture {of_model}{similar}; the section 'Supported models' of docs/commands.md in girih's \
         source lists all; --arch FILE describes others"
    );
    Error::with_kind(ErrorKind::Refused, sentence)
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(quote).collect::<Vec<_>>().join(", ")
}

/// An architecture's name without what transformers says of its task, which many have in common.
fn family(name: &str) -> &str {
    let end = ["For", "Model"].iter().filter_map(|task| name.find(task)).min();
    &name[..end.unwrap_or(name.len())]
}

/// Checks the names by which transformers chooses a model's code.
fn check_model_type(arch: &Arch, config: &ModelConfig<'_>) -> Result<()> {
    if config.is_gguf() {
        return Ok(());
    }
    let schema::Match { hf_model_type, hf_text_model_type, .. } = &arch.matches;
    check_named(arch, "model_type", config.json("model_type"), hf_model_type)?;
    let text = config.json(TEXT_MODEL_TYPE);
    text.map_or(Ok(()), |stated| check_named(arch, TEXT_MODEL_TYPE, Some(stated), hf_text_model_type))
}

/// Checks that the value of a key is one of these; without any, it is not compared.
fn check_named(arch: &Arch, key: &str, stated: Option<&serde_json::Value>, known: &[String]) -> Result<()> {
    let is_known = |stated: &str| known.iter().any(|known| known == stated);
    if known.is_empty() || stated.and_then(|stated| stated.as_str()).is_some_and(is_known) {
        return Ok(());
    }
    let (stated, known) = (stated.map_or("missing".to_owned(), value::brief), known.join(" or "));
    let sentence = format!("config.json's '{key}' is {stated}; architecture {} needs {known}", arch.name);
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_descriptions_are_valid() {
        let arches = known(&[]).unwrap();
        let names = arches.iter().map(|arch| arch.name.as_str());
        assert!(names.eq(SHIPPED.iter().map(|(name, _)| *name)), "each is named as its file");
    }

    #[test]
    fn assistants_that_read_more_than_hidden_states_of_the_last_layer_are_refused_by_name() {
        for name in ["MuseGlimmerAssistantModel", "LlamaForCausalLMEagle3"] {
            let config = serde_json::json!({ "architectures": [name] });
            let error = find(&known(&[]).unwrap(), &ModelConfig::Hf(&config)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().starts_with(&format!("'{name}' drafts by ")), "{error}");
        }
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let text = SHIPPED[0].1.replace("[head]", "[head]\ncolour = 3");
        assert!(schema::parse(&text).unwrap_err().to_string().contains("colour"));
    }
}
