//! A model's parameters, from `config.json` or the header of a GGUF.

use girih_file::{Metadata, shorten};
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use super::schema::{Arch, DefaultValue, ExcludedKey, Field, StatedValue};
use crate::limits::ModelLimits;

/// The source of a model's parameters.
#[derive(Clone, Copy, Debug)]
pub enum ModelConfig<'a> {
    /// `config.json`, in the hub's style or that of transformers 5.
    Hf(&'a Json),
    /// The header of a GGUF.
    Gguf(&'a Metadata),
}

impl<'a> ModelConfig<'a> {
    /// Whether the model comes from a GGUF.
    pub fn is_gguf(&self) -> bool {
        matches!(self, ModelConfig::Gguf(_))
    }

    /// The names of the model's architecture.
    pub(super) fn architectures(&self) -> Result<Vec<String>> {
        match self {
            ModelConfig::Gguf(metadata) => {
                Ok(vec![metadata.require::<&str>("general.architecture")?.to_owned()])
            }
            ModelConfig::Hf(config) => {
                let list = config.get("architectures").and_then(Json::as_array);
                let names: Vec<String> =
                    list.into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect();
                if names.is_empty() {
                    return Err(Error::new("config.json lists no 'architectures'; at least one is needed"));
                }
                Ok(names)
            }
        }
    }

    /// The number of layers, checked against the cap, as it bounds later allocations.
    pub(crate) fn layers(&self, arch: &Arch, limits: &ModelLimits) -> Result<usize> {
        let field = &arch.sizes.layers;
        let key = self.key(field);
        let layers = self.size(field)?.ok_or_else(|| Error::new(format!("{key} is missing")))?;
        if layers > limits.layers as usize {
            return Err(Error::new(format!("{key} is {layers}; the cap is {} layers", limits.layers)));
        }
        Ok(layers)
    }

    /// The value at a path of `config.json`; null counts as absent.
    pub(super) fn json(&self, path: &str) -> Option<&'a Json> {
        let ModelConfig::Hf(config) = self else { return None };
        let found = path.split('.').try_fold(*config, |level, key| level.get(key));
        found.filter(|value| !value.is_null())
    }

    /// The container's value of a field; `None` if it is absent.
    pub(super) fn stated(&self, field: &Field) -> Result<Option<StatedValue>> {
        match self {
            ModelConfig::Hf(_) => {
                field.hf.iter().find_map(|path| Some((path, self.json(path)?))).map_or(Ok(None), json)
            }
            ModelConfig::Gguf(metadata) => field.gguf.as_deref().map_or(Ok(None), |key| gguf(metadata, key)),
        }
    }

    /// The field's key, for errors.
    pub(super) fn key(&self, field: &Field) -> String {
        match self {
            ModelConfig::Hf(_) => format!("config.json's '{}'", field.hf.iter().next().unwrap_or("(no key)")),
            ModelConfig::Gguf(_) => format!("GGUF's '{}'", field.gguf.as_deref().unwrap_or("(no key)")),
        }
    }

    /// The sentence of `excluded` if the model sets `key` in a way that it excludes.
    pub(super) fn exclusion<'s>(&self, key: &str, excluded: &'s ExcludedKey) -> Result<Option<&'s str>> {
        let stated = match self {
            ModelConfig::Hf(_) => match self.json(key) {
                None => return Ok(None),
                Some(Json::Object(object)) if object.is_empty() => return Ok(None),
                // No list or object is harmless.
                Some(value) => json((key, value)).ok().flatten(),
            },
            ModelConfig::Gguf(metadata) => match gguf(metadata, key)? {
                None => return Ok(None),
                stated => stated,
            },
        };
        let (harmless, why) = match excluded {
            ExcludedKey::Set(why) => (stated == Some(StatedValue::Flag(false)), why),
            ExcludedKey::Other(required) => (stated.as_ref() == Some(&required.unless), &required.why),
        };
        Ok((!harmless).then_some(why.as_str()))
    }

    /// The container's part that states parameters, for errors.
    pub(super) fn part(&self) -> &'static str {
        match self {
            ModelConfig::Hf(_) => "config.json",
            ModelConfig::Gguf(_) => "GGUF",
        }
    }

    /// A number, or the field's default if that is a number.
    pub(super) fn number(&self, field: &Field) -> Result<Option<f64>> {
        match (self.stated(field)?, &field.default) {
            (Some(StatedValue::Number(number)), _) if number.is_finite() => Ok(Some(number)),
            (Some(other), _) => {
                Err(Error::new(format!("{} is {}; a number is needed", self.key(field), shown(&other))))
            }
            (None, Some(DefaultValue::Number(number))) => Ok(Some(*number)),
            (None, _) => Ok(None),
        }
    }

    /// A size: an integer from 1 to 2³¹ − 1.
    pub(super) fn size(&self, field: &Field) -> Result<Option<usize>> {
        let Some(number) = self.number(field)? else { return Ok(None) };
        if number.fract() != 0.0 || !(1.0..=f64::from(i32::MAX)).contains(&number) {
            let key = self.key(field);
            return Err(Error::new(format!("{key} is {number}; an integer from 1 to 2147483647 is needed")));
        }
        Ok(Some(number as usize))
    }

    /// A string, or the field's default if that is a string.
    pub(super) fn word(&self, field: &Field) -> Result<Option<String>> {
        match (self.stated(field)?, &field.default) {
            (Some(StatedValue::Word(word)), _) => Ok(Some(word)),
            (Some(other), _) => {
                Err(Error::new(format!("{} is {}; a string is needed", self.key(field), shown(&other))))
            }
            (None, Some(DefaultValue::Word(word))) => Ok(Some(word.clone())),
            (None, _) => Ok(None),
        }
    }

    /// A bool.
    pub(super) fn flag(&self, field: &Field) -> Result<Option<bool>> {
        match self.stated(field)? {
            Some(StatedValue::Flag(flag)) => Ok(Some(flag)),
            Some(other) => {
                Err(Error::new(format!("{} is {}; true or false is needed", self.key(field), shown(&other))))
            }
            None => Ok(None),
        }
    }
}

/// A value for an error: the text of a file may be long.
fn shown(value: &StatedValue) -> String {
    shorten(format_args!("{value:?}"))
}

fn json((path, value): (&str, &Json)) -> Result<Option<StatedValue>> {
    match value {
        Json::Number(number) => Ok(number.as_f64().map(StatedValue::Number)),
        Json::String(word) => Ok(Some(StatedValue::Word(word.clone()))),
        Json::Bool(flag) => Ok(Some(StatedValue::Flag(*flag))),
        _ => Err(Error::new(format!("config.json's '{path}' is a list or an object; one value is needed"))),
    }
}

fn gguf(metadata: &Metadata, key: &str) -> Result<Option<StatedValue>> {
    let Some(value) = metadata.value(key) else { return Ok(None) };
    if let Ok(Some(number)) = metadata.get::<u64>(key) {
        return Ok(Some(StatedValue::Number(number as f64)));
    }
    if let Ok(Some(number)) = metadata.get::<f32>(key) {
        return Ok(Some(StatedValue::Number(f64::from(number))));
    }
    if let Ok(Some(flag)) = metadata.get::<bool>(key) {
        return Ok(Some(StatedValue::Flag(flag)));
    }
    if let Ok(Some(word)) = metadata.get::<&str>(key) {
        return Ok(Some(StatedValue::Word(word.to_owned())));
    }
    Err(Error::new(format!("GGUF's '{key}' is {value}; one number, string or bool is needed")))
}
