//! `modules.json` of sentence-transformers: what follows a model whose texts become vectors.

use std::path::{Component, Path};

use girih_file::{quote, read_small};
use girih_graph::Pooling;
use girih_tensor::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::arch::PoolingFacts;
use crate::limits::ModelLimits;

/// The file that lists the modules.
const MODULES: &str = "modules.json";

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

/// Reads the pooling that the files in a model's folder state; `None` without `modules.json`.
///
/// # Errors
/// When the files are malformed, or list a module or a mode that girih does not compute.
pub(crate) fn pooling(folder: &Path, limits: &ModelLimits) -> Result<Option<PoolingFacts>> {
    let path = folder.join(MODULES);
    if !path.exists() {
        return Ok(None);
    }
    let modules: Vec<Module> = serde_json::from_slice(&read_small(&path, limits.file.json_bytes)?)
        .map_err(|error| Error::new(format!("is not a valid modules.json: {error}")).of(path.display()))?;
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
    let path = folder.join(part).join("config.json");
    let config: Map<String, Json> = serde_json::from_slice(&read_small(&path, limits.file.json_bytes)?)
        .map_err(|error| Error::new(format!("is not a valid JSON object: {error}")).of(path.display()))?;
    let how = mode(&config).map_err(|error| error.of(path.display()))?;
    Ok(Some(PoolingFacts { how, normalized }))
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
