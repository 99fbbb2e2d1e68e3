//! How the matrices of a folder of MLX are quantized: `quantization` in `config.json`, as mlx-lm writes it.

use std::collections::BTreeMap;

use girih_file::{Container, MlxQuantization, quote};
use girih_tensor::{Error, Result};
use serde_json::{Map, Value as Json};

use crate::adapter_config::refused;

/// The keys of `config.json`; both have the same value, the second one for programs that look for it.
const QUANTIZATION: &str = "quantization";
const COPY: &str = "quantization_config";

/// The default of all modules, and that of some; `None` for one that is not quantized.
struct MlxConfig {
    all: MlxQuantization,
    modules: BTreeMap<String, Option<MlxQuantization>>,
}

/// The container with each matrix of MLX as one tensor, if the configuration states that it has such; their keys are
/// then taken out of the configuration.
///
/// # Errors
/// When the statement is not understood, or the tensors contradict it.
pub(crate) fn revealed(container: Container, config: &mut Json) -> Result<Container> {
    let Some(Json::Object(stated)) = config.get(QUANTIZATION) else { return Ok(container) };
    let mlx = MlxConfig::of(stated)
        .map_err(|error| Error::with_kind(error.kind(), format!("config.json's '{QUANTIZATION}' {error}")))?;
    if config.get(COPY).is_some_and(|copy| Some(copy) != config.get(QUANTIZATION)) {
        return Err(refused(format!(
            "config.json has '{QUANTIZATION}' and another '{COPY}'; girih knows weights of one of both"
        )));
    }
    let container = container.with_mlx(|module| match mlx.modules.get(module) {
        Some(own) => *own,
        None => Some(mlx.all),
    })?;
    if let Some(keys) = config.as_object_mut() {
        keys.retain(|key, _| key != QUANTIZATION && key != COPY);
    }
    Ok(container)
}

impl MlxConfig {
    fn of(stated: &Map<String, Json>) -> Result<MlxConfig> {
        let all = quantization(stated)?;
        let mut modules = BTreeMap::new();
        for (name, value) in stated {
            match value {
                Json::Object(own) => {
                    if let Some(key) = own.keys().find(|key| !is_known(key)) {
                        return Err(unknown(key, &own[key]));
                    }
                    modules.insert(name.clone(), Some(quantization(own)?));
                }
                Json::Bool(is_quantized) => {
                    modules.insert(name.clone(), is_quantized.then_some(all));
                }
                _ if is_known(name) => {}
                _ => return Err(unknown(name, value)),
            }
        }
        Ok(MlxConfig { all, modules })
    }
}

fn is_known(key: &str) -> bool {
    matches!(key, "group_size" | "bits" | "mode")
}

/// The bits and the group of an object.
fn quantization(stated: &Map<String, Json>) -> Result<MlxQuantization> {
    match stated.get("mode") {
        None => {}
        Some(Json::String(mode)) if mode == "affine" => {}
        Some(mode) => return Err(unknown("mode", mode)),
    }
    let number = |key: &str| {
        let number = stated.get(key).and_then(Json::as_u64).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| Error::new(format!("has no number '{key}'")))
    };
    Ok(MlxQuantization { bits: number("bits")?, group: number("group_size")? as usize })
}

fn unknown(key: &str, value: &Json) -> Error {
    let value = quote(&value.to_string());
    refused(format!("sets {} to {}, which girih does not know", quote(key), value.trim_matches('\'')))
}
