//! Checks that every key of a model's parameters is read, or is known to change no number.
//!
//! An unread key may change the model's numbers. So each key of `config.json` and of a GGUF's
//! architecture is read by the description, or harmless by value, or refused by name.

use std::collections::{BTreeMap, BTreeSet};

use girih_file::{Metadata, quote, shorten};
use girih_tensor::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::Value as Json;

use super::config::{ModelConfig, gguf};
use super::facts::{AttentionFacts, Facts};
use super::rope::{GGUF_SCALING, SCHEME_KEYS, scheme_keys};
use super::schema::{Arch, ExcludedKey, Field, GgufKinds, HarmlessKey, StatedValue};
use super::value::brief;

/// The maximum number of keys that an error names.
const KEYS_NAMED: usize = 5;

/// The objects of `config.json` that have the keys of a language model and of an image tower in one of several parts.
const PARTS: [&str; 2] = ["text_config.", "vision_config."];

/// The key of the name by which transformers chooses the code of a model's text part.
pub(super) const TEXT_MODEL_TYPE: &str = "text_config.model_type";

/// The keys of a projector file that may name its projector; llama.cpp writes the second one where a file may have sounds, too.
pub const PROJECTOR_TYPES: [&str; 2] = ["clip.projector_type", "clip.vision.projector_type"];

/// The list that holds for all architectures.
const SHARED: &str = include_str!("../../archs/harmless.toml");

/// The keys that change no number of any model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedKeys {
    /// Keys of `config.json`.
    pub hf: BTreeMap<String, HarmlessKey>,
    /// Keys of GGUF without the name of the architecture, with which they begin.
    pub gguf: BTreeMap<String, HarmlessKey>,
}

/// The keys that change no number of any model.
///
/// # Errors
/// When the list is malformed, which a test excludes.
pub fn shared_keys() -> Result<SharedKeys> {
    toml::from_str(SHARED).map_err(|error| Error::new(format!("archs/harmless.toml is not valid: {error}")))
}

/// A key that girih does not read, and its value for an error.
pub(super) type Unread = (String, String);

/// Checks the keys of a model; returns those that `allow` makes girih ignore.
///
/// # Errors
/// When the model has a key that may change numbers and is neither read nor allowed, or when an
/// allowed key is read or absent.
pub(crate) fn check_keys(
    arch: &Arch,
    config: &ModelConfig<'_>,
    facts: &Facts,
    allow: &[String],
) -> Result<Vec<String>> {
    let keys = KeyCheck { arch, config, shared: shared_keys()?, read: read(arch, config) };
    let mut unread = match config {
        ModelConfig::Hf(json) => keys.of_json(json),
        ModelConfig::Gguf(metadata) => keys.of_gguf(metadata, facts)?,
    };
    unread.sort(); // some builds do not keep the order of the file
    let (ignored, refused): (Vec<Unread>, Vec<Unread>) =
        unread.into_iter().partition(|(key, _)| allow.contains(key));
    if !refused.is_empty() {
        return Err(unknown(config.part(), &arch.name, &refused));
    }
    for key in allow.iter().filter(|key| !ignored.iter().any(|(ignored, _)| ignored == *key)) {
        keys.check_allowed(key)?;
    }
    Ok(ignored.into_iter().map(|(key, _)| key).collect())
}

/// The keys of a `config.json` that a description does not read and that may change numbers, with their values.
///
/// # Errors
/// When the list of harmless keys is malformed, which a test excludes.
pub(super) fn unread_keys(arch: &Arch, config: &Json) -> Result<Vec<Unread>> {
    let source = ModelConfig::Hf(config);
    let keys = KeyCheck { arch, config: &source, shared: shared_keys()?, read: read(arch, &source) };
    let mut unread = keys.of_json(config);
    unread.sort(); // some builds do not keep the order of the file
    Ok(unread)
}

/// Refuses a model whose parameters set a key that the description excludes,
/// unless the key is in `allow`.
///
/// # Errors
/// When they do; the error has the description's reason.
pub(crate) fn check_refused(arch: &Arch, config: &ModelConfig<'_>, allow: &[String]) -> Result<()> {
    for (key, excluded) in arch.refuse.iter().filter(|(key, _)| !allow.contains(key)) {
        if let Some(why) = config.exclusion(key, excluded)? {
            let part = config.part();
            let sentence = match excluded {
                ExcludedKey::Null(_) => format!("{part} needs null for '{key}': {why}"),
                _ => format!("{part} sets '{key}': {why}"),
            };
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    }
    Ok(())
}

/// The sentence about keys that are not read.
fn unknown(part: &str, arch: &str, refused: &[Unread]) -> Error {
    let named = refused.iter().take(KEYS_NAMED).map(|(key, value)| format!("{} to {value}", quote(key)));
    let named = shorten(named.collect::<Vec<_>>().join(", "));
    let more = refused.len().saturating_sub(KEYS_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (subject, object) = if refused.len() == 1 { ("it", "it") } else { ("they", "each") };
    // A key that cannot be typed is named only once.
    let argument = match refused {
        [(key, _)] if plain(key) == *key => key,
        _ => "NAME",
    };
    let sentence = format!(
        "{part} sets {named}{more}, which architecture {arch} does not read; {subject} may change the model: \
         pass --allow-key {argument} to ignore {object}"
    );
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// A key as an argument on the command line.
fn plain(key: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if key.len() <= 80 && key.chars().all(is_plain) { key.to_owned() } else { quote(key) }
}

/// The keys that the architecture's description reads.
fn read(arch: &Arch, config: &ModelConfig<'_>) -> BTreeSet<String> {
    let fields: Vec<&Field> = arch.parameters().into_iter().map(|parameter| parameter.field).collect();
    let scalings = arch.rope.values().filter_map(|rope| rope.scaling.as_ref());
    let mut read = BTreeSet::new();
    match config {
        ModelConfig::Hf(_) => {
            read.extend(["architectures", "model_type"].map(str::to_owned));
            read.extend(fields.iter().flat_map(|field| field.hf.iter()).map(str::to_owned));
            read.extend(fields.iter().flat_map(|field| config.override_keys(field)));
            if !arch.matches.hf_text_model_type.is_empty() {
                read.insert(TEXT_MODEL_TYPE.to_owned());
            }
            read.extend(
                [&arch.layers.listed, &arch.layers.listed_or, &arch.layers.confirmed]
                    .into_iter()
                    .flatten()
                    .map(|listed| listed.hf.clone()),
            );
            let indexed = arch.layers.indexed.iter();
            read.extend(
                indexed.flat_map(|indexed| std::iter::once(&indexed.hf).chain(&indexed.others_hf)).cloned(),
            );
            read.extend(arch.biases.keys().cloned());
            read.extend(arch.vocabulary().hf.iter().map(str::to_owned));
            for (scaling, path) in
                scalings.flat_map(|scaling| scaling.hf.iter().map(move |path| (scaling, path)))
            {
                let keys = config.json(path).map_or(&SCHEME_KEYS[..], |object| scheme_keys(object, scaling));
                read.extend(keys.iter().map(|key| format!("{path}.{key}")));
            }
        }
        ModelConfig::Gguf(metadata) => {
            let listed = arch.layers.gguf_listed.iter().flat_map(GgufKinds::lists);
            read.extend(listed.map(|listed| listed.gguf.clone()));
            for (key, field) in fields.iter().filter_map(|field| Some((field.gguf.as_ref()?, field))) {
                read.insert(key.clone());
                read.extend(field.gguf_or.clone());
                // The others were compared with the key, so they count as read only if it exists.
                let also = field.gguf_also.iter().filter(|_| metadata.value(key).is_some());
                read.extend(also.cloned());
            }
            if !arch.matches.projector.is_empty() {
                read.extend(PROJECTOR_TYPES.map(str::to_owned));
            }
            for prefix in scalings.filter_map(|scaling| scaling.gguf.as_ref()) {
                read.extend(GGUF_SCALING.map(|key| format!("{prefix}.{key}")));
            }
        }
    }
    read
}

struct KeyCheck<'a> {
    arch: &'a Arch,
    config: &'a ModelConfig<'a>,
    shared: SharedKeys,
    read: BTreeSet<String>,
}

impl KeyCheck<'_> {
    /// The keys of `config.json` that may change numbers and are not read. An object counts as one
    /// key if none of its keys is read.
    fn of_json(&self, config: &Json) -> Vec<Unread> {
        let mut unread = Vec::new();
        let mut objects = vec![(String::new(), config)];
        while let Some((parent, object)) = objects.pop() {
            for (key, value) in object.as_object().into_iter().flatten() {
                let path = format!("{parent}{key}");
                // A dot is between levels, so no description reads a key that has one.
                let is_path = !key.contains('.');
                let is_known =
                    if is_path { self.is_known(&path, value) } else { self.is_harmless(&path, value) };
                if value.is_null() || is_known {
                    continue;
                }
                let below = format!("{path}.");
                let is_parent =
                    self.read.range(below.clone()..).next().is_some_and(|read| read.starts_with(&below))
                        || self.is_of_layers(&below);
                let is_read = |index: usize| self.read.contains(&format!("{below}{index}"));
                match value {
                    Json::Object(_) if is_path && is_parent => objects.push((below, value)),
                    // A description reads the values of a list by their indexes.
                    Json::Array(list) if is_path && is_parent && (0..list.len()).all(is_read) => {}
                    Json::Object(object) if object.is_empty() => {}
                    _ => unread.push((path, brief(value))),
                }
            }
        }
        unread
    }

    /// Whether a key of `config.json` is read, or harmless with this value.
    fn is_known(&self, path: &str, value: &Json) -> bool {
        // The first rope scaling that is stated counts, and it must be an object.
        let is_scaling = || self.arch.scaling_paths().any(|scaling| scaling == path) && !value.is_object();
        if self.read.contains(path) || is_scaling() {
            return true;
        }
        if let Some(excluded) = self.arch.refuse.get(path) {
            return matches!(self.config.exclusion(path, excluded), Ok(None));
        }
        self.is_harmless(path, value)
    }

    /// Whether harmless keys of each layer lie below a path.
    fn is_of_layers(&self, below: &str) -> bool {
        let below = of_any_layer(below);
        self.arch.harmless.keys().any(|key| key.contains(ANY_LAYER) && key.starts_with(&below))
    }

    /// Whether a key of `config.json` is harmless with this value.
    fn is_harmless(&self, path: &str, value: &Json) -> bool {
        let shared = &self.shared.hf;
        let entry = self.arch.harmless.get(path).or_else(|| self.arch.harmless.get(&of_any_layer(path)));
        let entry = entry.or_else(|| shared.get(path));
        let of_part = || PARTS.iter().find_map(|part| path.strip_prefix(part));
        let entry = entry.or_else(|| shared.get(of_part()?));
        entry.is_some_and(|entry| entry.is.contain(value))
    }

    /// The keys of a GGUF's architecture that may change numbers and are not read.
    fn of_gguf(&self, metadata: &Metadata, facts: &Facts) -> Result<Vec<Unread>> {
        let prefix = format!("{}.", metadata.require::<&str>("general.architecture")?);
        let mut unread = Vec::new();
        for (key, value) in metadata.iter() {
            let is_known = match (key, key.strip_prefix(&prefix)) {
                ("general.type", _) => {
                    let kind = if self.arch.tower.is_some() { "mmproj" } else { "model" };
                    metadata.get::<&str>(key)? == Some(kind)
                }
                (_, Some(suffix)) => self.is_known_in_gguf(key, suffix, metadata, facts),
                _ => !key.starts_with("adapter."),
            };
            if !is_known {
                unread.push((key.to_owned(), value.to_string()));
            }
        }
        Ok(unread)
    }

    /// Whether a key of a GGUF's architecture is read, or harmless with its value.
    fn is_known_in_gguf(&self, key: &str, suffix: &str, metadata: &Metadata, facts: &Facts) -> bool {
        let stated = gguf(metadata, key).ok().flatten();
        if self.read.contains(key) || stated.is_some() && stated == implied(suffix, facts) {
            return true;
        }
        if let Some(excluded) = self.arch.refuse.get(key) {
            return matches!(self.config.exclusion(key, excluded), Ok(None));
        }
        // Without rotary positions, no key of theirs changes a number.
        let mut attentions = facts.layers.iter().filter_map(|layer| layer.mixer.attention());
        if suffix.starts_with("rope.") && attentions.all(|attend| attend.rope.is_none()) {
            return true;
        }
        let entry = self.arch.harmless.get(key).or_else(|| self.shared.gguf.get(suffix));
        entry.is_some_and(|entry| match &stated {
            Some(stated) => entry.is.contain_stated(stated),
            None => entry.is.contain(&Json::Null), // an array
        })
    }

    /// Checks that the model has an allowed key, and that girih does not read it.
    fn check_allowed(&self, key: &str) -> Result<()> {
        let has = match self.config {
            ModelConfig::Hf(_) => self.config.json(key).is_some(),
            ModelConfig::Gguf(metadata) => metadata.value(key).is_some(),
        };
        let part = self.config.part();
        if !has {
            let sentence = format!("--allow-key {}: {part} has no such key; give its full path", plain(key));
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let below = format!("{key}.");
        if self.read.iter().any(|read| read == key || read.starts_with(&below)) {
            let sentence = format!(
                "--allow-key {}: architecture {} reads this key of {part}, so it cannot be ignored",
                plain(key),
                self.arch.name
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(())
    }
}

/// What stands for the index of a layer in a harmless key.
const ANY_LAYER: &str = ".{i}.";

/// A path with [`ANY_LAYER`] in place of each index.
fn of_any_layer(path: &str) -> String {
    let is_index = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = path.split('.').map(|part| if is_index(part) { "{i}" } else { part }).collect();
    parts.join(".")
}

/// The value that a model's facts imply for a key of GGUF whose description does not read it. Layers must
/// imply the same.
fn implied(suffix: &str, facts: &Facts) -> Option<StatedValue> {
    let of_layers = |size: fn(&AttentionFacts) -> Option<usize>| {
        let mut sizes = facts.layers.iter().filter_map(|layer| layer.mixer.attention()).map(size);
        let first = sizes.next()??;
        sizes.all(|size| size == Some(first)).then_some(StatedValue::Number(first as f64))
    };
    match suffix {
        "attention.key_length" => of_layers(|attend| Some(attend.head_size)),
        "attention.value_length" => of_layers(|attend| Some(attend.value_size.unwrap_or(attend.head_size))),
        // Layers that do not rotate imply none.
        "rope.dimension_count" => {
            let ropes = facts.layers.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref());
            let sizes: BTreeSet<usize> = ropes.map(|rope| rope.rotated).collect();
            let mut sizes = sizes.into_iter();
            sizes.next().filter(|_| sizes.next().is_none()).map(|size| StatedValue::Number(size as f64))
        }
        "attention.causal" => Some(StatedValue::Flag(!facts.is_encoder())),
        "vocab_size" => Some(StatedValue::Number(facts.sizes.vocabulary as f64)),
        _ => None,
    }
}
