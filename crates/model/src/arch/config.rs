//! A model's parameters, from `config.json` or the header of a GGUF.

use girih_file::{Metadata, MetadataArray, MetadataValue, quote};
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use super::schema::{Arch, DefaultValue, ExcludedKey, Field, LayerOverrides, StatedValue};
use super::value::brief;
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

    /// Whether a GGUF has all of these keys, and none is 0. Always true for other containers.
    pub(crate) fn has_gguf(&self, keys: &[String]) -> bool {
        let ModelConfig::Gguf(metadata) = self else { return true };
        let is_zero = |key| matches!(metadata.get::<u64>(key), Ok(Some(0)));
        keys.iter().all(|key| metadata.value(key).is_some() && !is_zero(key))
    }

    /// Whether a `config.json` has all of these keys. Always true for a GGUF.
    pub(super) fn has_hf(&self, keys: &[String]) -> bool {
        self.is_gguf() || keys.iter().all(|key| self.json(key).is_some())
    }

    /// The names of the model's architecture.
    pub(super) fn architectures(&self) -> Result<Vec<String>> {
        match self {
            ModelConfig::Gguf(metadata) => {
                Ok(vec![metadata.require::<&str>("general.architecture")?.to_owned()])
            }
            ModelConfig::Hf(config) => {
                let list = config.get("architectures").and_then(Json::as_array);
                let names = list.into_iter().flatten().map(|name| name.as_str().map(str::to_owned));
                match names.collect::<Option<Vec<String>>>() {
                    Some(names) if !names.is_empty() => Ok(names),
                    Some(_) => {
                        Err(Error::new("config.json lists no 'architectures'; at least one is needed"))
                    }
                    None => Err(Error::new(
                        "config.json's 'architectures' is not a list of strings; one is needed",
                    )),
                }
            }
        }
    }

    /// The number of layers, checked against the cap, as it bounds later allocations.
    pub(crate) fn layers(&self, arch: &Arch, limits: &ModelLimits) -> Result<usize> {
        let field = &arch.sizes.layers;
        let key = self.key(field);
        // The list of their kinds may say it alone.
        let listed = arch.layers.listed.as_ref().and_then(|listed| self.json(&listed.hf)?.as_array());
        // A tower may be a projection of patches alone.
        let stated = if arch.tower.is_some() { self.count(field)? } else { self.size(field)? };
        let layers = stated.or(listed.map(Vec::len).filter(|layers| *layers > 0));
        let layers = layers.ok_or_else(|| Error::new(format!("{key} is missing")))?;
        let drafting = self.drafting_layers(arch)?;
        if drafting > 0 && drafting >= layers {
            return Err(Error::new(format!(
                "{key} is {layers}, and {drafting} of these layers draft tokens; at least one other is needed"
            )));
        }
        let layers = layers - drafting;
        if layers > limits.layers as usize {
            return Err(Error::new(format!("{key} is {layers}; the cap is {} layers", limits.layers)));
        }
        Ok(layers)
    }

    /// The number of layers that draft tokens, which a GGUF counts among all.
    pub(crate) fn drafting_layers(&self, arch: &Arch) -> Result<usize> {
        let field = arch.sizes.drafting.as_ref().filter(|_| self.is_gguf());
        Ok(field.map_or(Ok(None), |field| self.count(field))?.unwrap_or(0))
    }

    /// The value at a path of `config.json`; null counts as absent.
    pub(super) fn json(&self, path: &str) -> Option<&'a Json> {
        self.entry(path).filter(|value| !value.is_null())
    }

    /// The value at a path of `config.json`, which may be null.
    pub(crate) fn entry(&self, path: &str) -> Option<&'a Json> {
        let ModelConfig::Hf(config) = self else { return None };
        path.split('.').try_fold(*config, |level, key| match level {
            Json::Array(list) => list.get(key.parse::<usize>().ok()?),
            _ => level.get(key),
        })
    }

    /// Whether `config.json` states null for a field, and no other value.
    pub(super) fn is_null(&self, field: &Field) -> bool {
        let entries = || field.hf.iter().filter_map(|path| self.entry(path));
        entries().count() > 0 && entries().all(Json::is_null)
    }

    /// The value of a field in `config.json`, and its path. Null counts as absent if the
    /// default is another size, or if there is none.
    fn found<'f>(&self, field: &'f Field) -> Result<Option<(&'f str, &'a Json)>> {
        let mut found = field.hf.iter().filter_map(|path| Some((path, self.json(path)?)));
        let Some((first, value)) = found.next() else {
            if self.is_null(field) && self.default(field).is_some_and(|default| !default.is_a_size()) {
                let key = self.key(field);
                return Err(Error::new(format!("{key} is null; a value is needed, or remove the key")));
            }
            return Ok(None);
        };
        let other = found.find(|(_, other)| !field.hf_first && !same(value, other));
        if let Some((path, other)) = other {
            let (value, other) = (brief(value), brief(other));
            return Err(Error::new(format!(
                "config.json sets '{first}' to {value} and '{path}' to {other}; equal values are needed"
            )));
        }
        Ok(Some((first, value)))
    }

    /// The container's value of a field; `None` if it is absent.
    pub(super) fn stated(&self, field: &Field) -> Result<Option<StatedValue>> {
        match self {
            ModelConfig::Hf(_) => self.found(field)?.map_or(Ok(None), json),
            ModelConfig::Gguf(metadata) => {
                let Some(key) = field.gguf.as_deref() else { return Ok(None) };
                let value = match (gguf(metadata, key)?, &field.gguf_or) {
                    (None, Some(other)) => gguf(metadata, other)?,
                    (value, _) => value,
                };
                for also in &field.gguf_also {
                    let other = gguf(metadata, also)?;
                    if other.is_some() && value.is_some() && value != other {
                        let [value, other] = [key, also].map(|key| metadata.value(key).expect("it was read"));
                        return Err(Error::new(format!(
                            "GGUF sets '{key}' to {value} and '{also}' to {other}; equal values are needed"
                        )));
                    }
                }
                Ok(value)
            }
        }
    }

    /// A list of `config.json` with a value for each of `layers` layers.
    pub(super) fn listed<'v>(&self, path: &str, value: &'v Json, layers: usize) -> Result<&'v [Json]> {
        let list = value.as_array().ok_or_else(|| {
            let value = brief(value);
            Error::new(format!("config.json's '{path}' is {value}; a list is needed"))
        })?;
        if list.len() != layers {
            let have = list.len();
            return Err(Error::new(format!(
                "config.json's '{path}' lists {have} layers; the model has {layers}"
            )));
        }
        Ok(list)
    }

    /// The size that a GGUF lists for one of `layers` layers; `None` if the key is absent or no list.
    pub(super) fn gguf_size(&self, key: &str, index: usize, layers: usize) -> Result<Option<usize>> {
        let ModelConfig::Gguf(metadata) = self else { return Ok(None) };
        let Some(MetadataValue::Array(array)) = metadata.value(key) else { return Ok(None) };
        let number = match array {
            MetadataArray::U32(list) => list.get(index).map(|number| i64::from(*number)),
            MetadataArray::I32(list) => list.get(index).map(|number| i64::from(*number)),
            MetadataArray::Bool(list) => list.get(index).map(|flag| i64::from(*flag)),
            _ => None,
        };
        // Layers that draft tokens have entries, too.
        let blocks = key.split('.').next().map(|arch| metadata.get::<u64>(&format!("{arch}.block_count")));
        let is_whole =
            array.len() == layers || matches!(blocks, Some(Ok(Some(count))) if count == array.len() as u64);
        let size = number.filter(|_| is_whole).and_then(|number| i32::try_from(number).ok());
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| {
            let have = array.len();
            Error::new(format!(
                "GGUF's '{key}' is a list of length {have}; {layers} sizes from 0 to 2147483647 are needed, one for \
                 each layer"
            ))
        })
    }

    /// The values that a `config.json` has for one of `layers` layers in the object of a field's overrides; `None`
    /// without that object.
    fn overrides(
        &self,
        overrides: &LayerOverrides,
        index: usize,
        layers: usize,
    ) -> Result<Option<Option<&'a Json>>> {
        let Some(value) = self.json(&overrides.hf) else { return Ok(None) };
        let wrong = || {
            let (path, value) = (&overrides.hf, brief(value));
            Error::new(format!(
                "config.json's '{path}' is {value}; an object with an object for some of {layers} layers is needed"
            ))
        };
        let mut found = None;
        for (key, own) in value.as_object().ok_or_else(wrong)? {
            // transformers pads the index with zeros.
            let layer = key.parse::<usize>().ok().filter(|layer| *layer < layers).ok_or_else(wrong)?;
            if layer == index && found.replace(own).is_some() || !own.is_object() {
                return Err(wrong());
            }
        }
        Ok(Some(found.and_then(|own| own.get(&overrides.key)).filter(|value| !value.is_null())))
    }

    /// The size that a `config.json` states for one of `layers` layers in the object of a field's overrides; `None`
    /// without that object.
    pub(super) fn overridden_size(
        &self,
        field: &Field,
        index: usize,
        layers: usize,
    ) -> Result<Option<usize>> {
        let Some(overrides) = field.overrides.as_ref() else { return Ok(None) };
        match self.overrides(overrides, index, layers)? {
            None => Ok(None),
            Some(None) => self.size(&overrides.others),
            Some(Some(value)) => {
                let size = value.as_u64().filter(|size| (1..=i32::MAX as u64).contains(size));
                size.map(|size| Some(size as usize)).ok_or_else(|| {
                    let (path, key, value) = (&overrides.hf, &overrides.key, brief(value));
                    Error::new(format!(
                        "config.json's '{path}' sets '{key}' of layer {index} to {value}; an integer from 1 to \
                         2147483647 is needed"
                    ))
                })
            }
        }
    }

    /// The keys of `config.json` that a field reads in the object of its overrides.
    pub(super) fn override_keys(&self, field: &Field) -> Vec<String> {
        let Some(LayerOverrides { hf, key, others }) = field.overrides.as_deref() else { return Vec::new() };
        let layers = self.json(hf).and_then(Json::as_object).into_iter().flatten();
        layers
            .map(|(layer, _)| format!("{hf}.{layer}.{key}"))
            .chain(others.hf.iter().map(str::to_owned))
            .collect()
    }

    /// The size that a field lists for one of `layers` layers, which may be 0; `None` if it has no list.
    pub(super) fn listed_size(&self, field: &Field, index: usize, layers: usize) -> Result<Option<usize>> {
        if !field.by_layer {
            return Ok(None);
        }
        match self {
            ModelConfig::Gguf(_) => {
                field.gguf.as_ref().map_or(Ok(None), |key| self.gguf_size(key, index, layers))
            }
            ModelConfig::Hf(_) => {
                let Some((path, value)) = self.found(field)?.filter(|(_, value)| value.is_array()) else {
                    return Ok(None);
                };
                let value = &self.listed(path, value, layers)?[index];
                let size = value.as_u64().filter(|size| *size <= i32::MAX as u64);
                size.map(|size| Some(size as usize)).ok_or_else(|| {
                    let value = brief(value);
                    Error::new(format!(
                        "config.json's '{path}' lists {value}; integers from 0 to 2147483647 are needed"
                    ))
                })
            }
        }
    }

    /// The default of a field in this container.
    pub(super) fn default<'f>(&self, field: &'f Field) -> Option<&'f DefaultValue> {
        let own = field.hf_default.as_ref().filter(|_| !self.is_gguf());
        own.or(field.default.as_ref())
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
        if let ExcludedKey::Null(required) = excluded {
            let is_null = self.is_gguf() || self.entry(key).is_some_and(Json::is_null);
            return Ok((!is_null).then_some(required.only_null.as_str()));
        }
        let stated = match self {
            ModelConfig::Hf(_) => match self.json(key) {
                None => return Ok(None),
                Some(Json::Object(object)) if object.is_empty() => return Ok(None),
                // No list or object is harmless.
                Some(value) => StatedValue::of_json(value),
            },
            ModelConfig::Gguf(metadata) => match gguf(metadata, key)? {
                None => return Ok(None),
                stated => stated,
            },
        };
        let (harmless, why) = match excluded {
            ExcludedKey::Set(why) => (stated == Some(StatedValue::Flag(false)), why),
            ExcludedKey::Other(required) => (stated.as_ref() == Some(&required.unless), &required.why),
            ExcludedKey::Never(excluded) => (stated.as_ref() != Some(&excluded.never), &excluded.why),
            ExcludedKey::Null(required) => (false, &required.only_null),
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
        match (self.stated(field)?, self.default(field)) {
            (Some(StatedValue::Number(number)), _) if number.is_finite() => Ok(Some(number)),
            (Some(other), _) => {
                Err(Error::new(format!("{} is {}; a number is needed", self.key(field), shown(&other))))
            }
            (None, Some(DefaultValue::Number(number))) => Ok(Some(*number)),
            (None, _) => Ok(None),
        }
    }

    /// A size: an integer from 1 to 2³¹ − 1.
    pub(crate) fn size(&self, field: &Field) -> Result<Option<usize>> {
        let Some(number) = self.number(field)? else { return Ok(None) };
        // transformers rejects 3.0 as a size.
        let is_float = self.found(field)?.is_some_and(|(_, value)| value.is_f64());
        if is_float || number.fract() != 0.0 || !(1.0..=f64::from(i32::MAX)).contains(&number) {
            let (key, shown) =
                (self.key(field), if is_float { format!("{number:?}") } else { number.to_string() });
            return Err(Error::new(format!("{key} is {shown}; an integer from 1 to 2147483647 is needed")));
        }
        Ok(Some(number as usize))
    }

    /// A count: a size, or 0.
    pub(crate) fn count(&self, field: &Field) -> Result<Option<usize>> {
        match self.number(field)? {
            Some(0.0) => Ok(Some(0)),
            _ => self.size(field),
        }
    }

    /// A string, or the field's default if that is a string.
    pub(super) fn word(&self, field: &Field) -> Result<Option<String>> {
        match (self.stated(field)?, self.default(field)) {
            (Some(StatedValue::Word(word)), _) => Ok(Some(word)),
            (Some(other), _) => {
                Err(Error::new(format!("{} is {}; a string is needed", self.key(field), shown(&other))))
            }
            (None, Some(DefaultValue::Word(word))) => Ok(Some(word.clone())),
            (None, _) => Ok(None),
        }
    }

    /// A bool.
    pub(crate) fn flag(&self, field: &Field) -> Result<Option<bool>> {
        match (self.stated(field)?, self.default(field)) {
            (Some(StatedValue::Flag(flag)), _) => Ok(Some(flag)),
            (Some(other), _) => {
                Err(Error::new(format!("{} is {}; true or false is needed", self.key(field), shown(&other))))
            }
            (None, Some(DefaultValue::Flag(flag))) => Ok(Some(*flag)),
            (None, _) => Ok(None),
        }
    }
}

/// A value for an error: the text of a file may be long.
pub(super) fn shown(value: &StatedValue) -> String {
    match value {
        StatedValue::Flag(flag) => flag.to_string(),
        StatedValue::Number(number) => number.to_string(),
        StatedValue::Word(word) => quote(word),
    }
}

fn json((path, value): (&str, &Json)) -> Result<Option<StatedValue>> {
    let stated = StatedValue::of_json(value);
    stated.map(Some).ok_or_else(|| {
        Error::new(format!("config.json's '{path}' is a list or an object; one value is needed"))
    })
}

/// Whether two values are equal; 1 and 1.0 are.
fn same(a: &Json, b: &Json) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

/// The value of a key of GGUF; `None` if it is absent.
pub(super) fn gguf(metadata: &Metadata, key: &str) -> Result<Option<StatedValue>> {
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
    Err(Error::new(format!(
        "GGUF's '{key}' is {value}; a string, a bool, or a number of at least 0 is needed"
    )))
}
