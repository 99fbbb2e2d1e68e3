//! `modules.json` of sentence-transformers: what follows a model whose texts become vectors.

use std::path::{Component, Path};

use girih_file::{quote, read_companion, read_required, shorten, shorten_parse};
use girih_graph::Pooling;
use girih_tensor::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::arch::PoolingFacts;
use crate::limits::ModelLimits;

/// The file that lists the modules.
const MODULES: &str = "modules.json";

/// The settings of the first module, the model itself.
const TRANSFORMER: &str = "sentence_bert_config.json";

/// The prompts of the whole.
const PROMPTS: &str = "config_sentence_transformers.json";

/// The maximum number of modules that an error names.
const MODULES_NAMED: usize = 5;

/// The prefix of the keys of pooling modes.
const MODE: &str = "pooling_mode_";

/// The pooling modes that girih computes.
const MODES: [(&str, Pooling); 3] =
    [("cls_token", Pooling::First), ("mean_tokens", Pooling::Mean), ("lasttoken", Pooling::Last)];

/// One module of the list.
#[derive(Deserialize)]
struct Module {
    /// The name of a Python class, with those of its packages.
    #[serde(rename = "type")]
    class: String,
    /// The folder of its configuration.
    path: String,
}

/// What the files of sentence-transformers state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentenceFacts {
    /// How a text becomes one vector.
    pub pooling: PoolingFacts,
    /// The maximum number of tokens of a text, if they state one.
    pub max_tokens: Option<usize>,
}

/// Reads what the files of sentence-transformers in a model's folder state; `None` without
/// `modules.json`.
///
/// # Errors
/// When the files are malformed, or state what girih does not compute.
pub(crate) fn read(folder: &Path, limits: &ModelLimits) -> Result<Option<SentenceFacts>> {
    let Some(modules) = read_if_present::<Vec<Module>>(folder, MODULES, limits)? else {
        return Ok(None);
    };
    let path = folder.join(MODULES);
    let classes = modules.iter().map(|module| module.class.rsplit('.').next().unwrap_or_default());
    let classes: Vec<&str> = classes.collect();
    let normalized = match classes[..] {
        ["Transformer", "Pooling"] => false,
        ["Transformer", "Pooling", "Normalize"] => true,
        _ => {
            let listed: Vec<String> = classes.iter().take(MODULES_NAMED).map(|class| quote(class)).collect();
            let listed = listed.join(", ");
            return Err(Error::new(format!(
                "lists the modules {listed}; 'Transformer', 'Pooling' and optionally 'Normalize' are supported"
            ))
            .of(path.display()));
        }
    };
    let part = Path::new(&modules[1].path);
    if !part.components().all(|component| matches!(component, Component::Normal(_))) {
        let named = quote(&modules[1].path);
        return Err(Error::new(format!("names the folder {named}; one inside the model's is needed"))
            .of(path.display()));
    }
    if !modules[0].path.is_empty() {
        let named = quote(&modules[0].path);
        return Err(Error::new(format!(
            "names the folder {named} for 'Transformer'; the model's own is needed"
        ))
        .of(path.display()));
    }
    let part = part.join("config.json");
    let text = read_required(folder, &part, limits.file.json_bytes)?;
    let how = parse(&text).and_then(|config| mode(&config));
    let how = how.map_err(|error| error.of(folder.join(part).display()))?;
    Ok(Some(SentenceFacts {
        pooling: PoolingFacts { how, normalized },
        max_tokens: max_tokens(folder, limits)?,
    }))
}

/// The maximum number of tokens of a text; refuses changes of the text that girih does not make.
fn max_tokens(folder: &Path, limits: &ModelLimits) -> Result<Option<usize>> {
    let path = folder.join(PROMPTS);
    let prompts: Map<String, Json> = read_if_present(folder, PROMPTS, limits)?.unwrap_or_default();
    if let Some(name) = prompts.get("default_prompt_name").filter(|name| !name.is_null()) {
        let sentence = format!(
            "adds the prompt {} to every text, which is not supported; remove the key",
            shorten(name)
        );
        return Err(Error::new(sentence).of(path.display()));
    }
    let path = folder.join(TRANSFORMER);
    let transformer: Map<String, Json> = read_if_present(folder, TRANSFORMER, limits)?.unwrap_or_default();
    if transformer.get("do_lower_case") == Some(&Json::Bool(true)) {
        let sentence = "lowers the case of texts before they are tokenized, which is not supported; \
             remove 'do_lower_case'";
        return Err(Error::new(sentence).of(path.display()));
    }
    match transformer.get("max_seq_length") {
        None | Some(Json::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|tokens| usize::try_from(tokens).ok()) {
            Some(tokens) if tokens > 0 => Ok(Some(tokens)),
            _ => {
                let sentence = format!("max_seq_length is {}; a positive integer is needed", shorten(value));
                Err(Error::new(sentence).of(path.display()))
            }
        },
    }
}

/// Reads a file of JSON; `None` if there is none.
fn read_if_present<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    limits: &ModelLimits,
) -> Result<Option<T>> {
    let text = read_companion(folder, name, limits.file.json_bytes)?;
    let parsed = text.map(|text| parse(&text)).transpose();
    parsed.map_err(|error| error.of(folder.join(name).display()))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|error| Error::new(format!("is not valid: {}", shorten_parse(&error))))
}

/// The only mode that the configuration of a pooling module sets.
fn mode(config: &Map<String, Json>) -> Result<Pooling> {
    if config.get("include_prompt") == Some(&Json::Bool(false)) {
        return Err(Error::new(
            "sets 'include_prompt' to false: pooling without the prompt's rows is not supported",
        ));
    }
    let set = config.iter().filter(|(_, value)| **value == Json::Bool(true));
    let set: Vec<&str> = set.filter_map(|(key, _)| key.strip_prefix(MODE)).collect();
    let [name] = set[..] else {
        let count = if set.is_empty() {
            "no pooling mode".to_owned()
        } else {
            format!("{} pooling modes", set.len())
        };
        return Err(Error::new(format!("sets {count}; one is needed")));
    };
    let found = MODES.iter().find(|(known, _)| *known == name).map(|(_, how)| *how);
    found.ok_or_else(|| {
        let known = MODES.map(|(known, _)| format!("'{MODE}{known}'")).join(", ");
        Error::new(format!("sets {}; {known} are supported", quote(&format!("{MODE}{name}"))))
    })
}
