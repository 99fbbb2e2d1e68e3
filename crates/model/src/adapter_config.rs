//! The settings of an adapter: by which factor each product is multiplied, and what girih refuses.

use girih_file::{Metadata, quote};
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value as Json};

/// Settings of PEFT that change no number of a saved adapter, or whose effect its tensors show.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Values of `init_lora_weights` that leave the model's own weights as they are. With others, such as `pissa`, an adapter
/// belongs to a model whose weights PEFT changed before training.
const PLAIN_STARTS: &[&str] = &["gaussian", "orthogonal", "eva"];

/// The keys of an adapter in GGUF.
const GGUF_KEYS: &[&str] =
    &["adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// By which factor each product of an adapter is multiplied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterConfig {
    /// `lora_alpha`; `None` for the factor 1.
    alpha: Option<f32>,
    /// Other values of modules whose names end with these words.
    patterns: Vec<(String, f32)>,
    /// `r`, if every module has this rank.
    rank: Option<usize>,
    /// The last names of the modules whose tensors the adapter replaces (`modules_to_save`).
    saved: Vec<String>,
    /// Whether alpha is divided by the root of the rank, not by the rank (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732).
    by_root: bool,
}

impl AdapterConfig {
    /// That of `adapter_config.json`.
    ///
    /// # Errors
    /// For another kind of adapter, and for a setting that girih does not have.
    pub fn peft(config: &Json) -> Result<AdapterConfig> {
        let config = config.as_object().ok_or_else(|| Error::new("'adapter_config.json' is no object"))?;
        match config.get("peft_type").and_then(Json::as_str) {
            Some("LORA") => {}
            other => {
                let found = other.map_or("none".to_owned(), quote);
                return Err(refused(format!(
                    "'peft_type' is {found}; girih has adapters of the type 'LORA' only"
                )));
            }
        }
        let by_root = config.get("use_rslora").and_then(Json::as_bool).unwrap_or(false);
        config.iter().try_for_each(|(key, value)| check(key, value))?;
        let alpha = number(config.get("lora_alpha").unwrap_or(&Json::from(8)), "lora_alpha")?;
        let empty = Map::new();
        let patterns = match config.get("alpha_pattern") {
            None | Some(Json::Null) => &empty,
            Some(patterns) => {
                patterns.as_object().ok_or_else(|| Error::new("'alpha_pattern' is no object"))?
            }
        };
        let pattern = |(words, alpha): (&String, &Json)| {
            // PEFT reads them as regular expressions; a dot in a name stands for itself here.
            let is_plain = words.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
            if !is_plain {
                return Err(refused(format!(
                    "'alpha_pattern' has {}; girih reads names of modules there, no regular expressions",
                    quote(words)
                )));
            }
            Ok((words.clone(), number(alpha, "alpha_pattern")?))
        };
        let patterns = patterns.iter().map(pattern).collect::<Result<_>>()?;
        let is_one_rank =
            config.get("rank_pattern").is_none_or(|ranks| ranks.as_object().is_none_or(Map::is_empty));
        let rank = config.get("r").and_then(Json::as_u64).map(|rank| rank as usize).filter(|_| is_one_rank);
        let saved = match config.get("modules_to_save") {
            None | Some(Json::Null) => Vec::new(),
            Some(names) => saved_modules(names)?,
        };
        Ok(AdapterConfig { alpha: Some(alpha), patterns, rank, saved, by_root })
    }

    /// That of the header of a GGUF, for a model of the architecture `arch`, of which GGUF's names are `names`.
    ///
    /// # Errors
    /// For a file that is no adapter, one of another architecture, and an adapter of another kind.
    pub fn gguf(metadata: &Metadata, (arch, names): (&str, &[String])) -> Result<AdapterConfig> {
        if metadata.get::<&str>("general.type")? != Some("adapter") {
            return Err(Error::new("is no adapter: its 'general.type' is not 'adapter'"));
        }
        let kind = metadata.require::<&str>("adapter.type")?;
        if kind != "lora" {
            return Err(refused(format!("is an adapter of the type {}; girih has 'lora' only", quote(kind))));
        }
        let is_unknown = |key: &&str| key.starts_with("adapter.") && !GGUF_KEYS.contains(key);
        if let Some(key) = metadata.iter().map(|(key, _)| key).find(is_unknown) {
            return Err(refused(format!("has the key {}, which girih's adapters do not have", quote(key))));
        }
        let of = metadata.require::<&str>("general.architecture")?;
        if !names.iter().any(|name| name == of) {
            return Err(Error::new(format!(
                "is an adapter of the architecture {}, but the model's is {arch}",
                quote(of)
            )));
        }
        // As llama.cpp, 0 stands for the factor 1.
        let alpha = metadata.get::<f32>("adapter.lora.alpha")?.filter(|alpha| *alpha != 0.0);
        if alpha.is_some_and(|alpha| !alpha.is_finite()) {
            return Err(Error::new("its 'adapter.lora.alpha' is not finite"));
        }
        let (patterns, saved) = (Vec::new(), Vec::new());
        Ok(AdapterConfig { alpha, patterns, rank: None, saved, by_root: false })
    }

    /// The rank that a folder of PEFT states for all modules.
    pub fn stated_rank(&self) -> Option<usize> {
        self.rank
    }

    /// The names of modules whose tensors the adapter replaces.
    pub fn saved(&self) -> &[String] {
        &self.saved
    }

    /// The factor of the matrices of this rank that change a tensor. As in PEFT, the first pattern that fits counts.
    pub fn scale(&self, tensor: &str, rank: usize) -> f32 {
        let own = self.patterns.iter().find(|(words, _)| is_of(tensor, words)).map(|(_, alpha)| *alpha);
        let Some(alpha) = own.or(self.alpha) else { return 1.0 };
        let rank = rank as f32;
        if self.by_root { alpha / rank.sqrt() } else { alpha / rank }
    }
}

/// Whether a tensor is the weight of a module whose name ends with these words.
pub(crate) fn is_of(tensor: &str, words: &str) -> bool {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    module.strip_suffix(words).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

fn number(value: &Json, key: &str) -> Result<f32> {
    let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
    number.ok_or_else(|| Error::new(format!("'{key}' is {value}; a finite number is needed")))
}

/// The names of `modules_to_save`.
fn saved_modules(names: &Json) -> Result<Vec<String>> {
    let names = names.as_array().and_then(|names| {
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    });
    names.ok_or_else(|| Error::new("'modules_to_save' is no list of names"))
}

/// Refuses a setting that girih does not have.
fn check(key: &str, value: &Json) -> Result<()> {
    let is_off = match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(object) => object.is_empty(),
        Json::Bool(true) | Json::Number(_) | Json::String(_) => false,
    };
    let why = match (key, value) {
        _ if is_off || HARMLESS.contains(&key) => return Ok(()),
        ("peft_type" | "lora_alpha" | "alpha_pattern" | "modules_to_save", _)
        | ("use_rslora", Json::Bool(true)) => return Ok(()),
        ("init_lora_weights", Json::Bool(true)) => return Ok(()),
        ("init_lora_weights", Json::String(start)) if PLAIN_STARTS.contains(&start.as_str()) => return Ok(()),
        ("bias", Json::String(bias)) if bias == "none" => return Ok(()),
        ("init_lora_weights", _) => {
            "such an adapter belongs to weights that were changed before training; convert it to a plain one with PEFT"
        }
        ("use_dora", _) => "girih has no DoRA",
        ("fan_in_fan_out", _) => "its model stores matrices by columns, which girih does not adapt",
        ("bias", _) => "girih's adapters change no biases",
        _ => "girih does not have this setting",
    };
    Err(refused(format!(
        "'adapter_config.json' sets '{}' to {}: {why}",
        brief(key),
        brief(&value.to_string())
    )))
}

pub(crate) fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// The beginning of a text from a file.
fn brief(text: &str) -> String {
    quote(text).trim_matches('\'').to_owned()
}
