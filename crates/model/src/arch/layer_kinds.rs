//! The kind of each layer: the description that `[layers]` names for it.

use std::collections::BTreeSet;

use girih_tensor::{Error, Result};

use super::based_on::dense_kind;
use super::config::ModelConfig;
use super::schema::{Arch, DenseLayersSchema, Field, GgufKinds, IndexedKind, ListedKinds};
use super::value::brief;

/// The kind of each layer: by the model's list, else by its period, else by the pattern.
///
/// # Errors
/// When the list has another number of layers, or an unknown kind.
pub(crate) fn layer_kinds<'a>(
    arch: &'a Arch,
    config: &ModelConfig<'_>,
    layers: usize,
) -> Result<Vec<&'a str>> {
    let kinds = mixer_kinds(arch, config, layers)?;
    if let Some(listed) = &arch.layers.confirmed
        && let Some(confirmed) = listed_kinds(listed, config, layers)?
        && let Some(layer) = (0..layers).find(|layer| confirmed[*layer] != kinds[*layer])
    {
        let (key, name) = (&listed.hf, &arch.name);
        let [kind, other] = [confirmed[layer], kinds[layer]];
        return Err(Error::new(format!(
            "config.json's '{key}' makes layer {layer} {kind}, other keys make it {other}; architecture {name} \
             needs both to agree"
        )));
    }
    if let Some((last, kind)) =
        arch.layers.last.as_ref().zip(kinds.last()).filter(|(last, kind)| last != *kind)
    {
        let name = &arch.name;
        return Err(Error::new(format!(
            "the last layer is {kind}; architecture {name} needs one that is {last}"
        )));
    }
    let is_dense = dense_layers(arch, config, layers)?;
    let kind = |(kind, is_dense): (&'a str, bool)| {
        if !is_dense {
            return Ok(kind);
        }
        let name = dense_kind(kind);
        let found = arch.layer.keys().find(|known| **known == name);
        found.map(String::as_str).ok_or_else(|| {
            Error::new(format!("architecture {}: layers without experts need [dense]", arch.name))
        })
    };
    kinds.into_iter().zip(is_dense).map(kind).collect()
}

/// Whether each layer is one without experts, in a model with them.
fn dense_layers<'a>(arch: &'a Arch, config: &ModelConfig<'_>, layers: usize) -> Result<Vec<bool>> {
    let DenseLayersSchema { first, last, step, indexed, others_indexed, listed, unless } = &arch.layers.dense;
    if let Some(field) = unless
        && config.count(field)? == Some(0)
    {
        return Ok(vec![true; layers]);
    }
    let list = |field: &'a Option<Field>| {
        let key = field.as_ref()?.hf.iter().next()?;
        Some((key, config.json(key)?))
    };
    if let Some((key, value)) = list(listed) {
        let is_dense = |word: &serde_json::Value| match word.as_str() {
            Some("dense") => Ok(true),
            Some("sparse") => Ok(false),
            _ => {
                let word = brief(word);
                Err(Error::new(format!(
                    "config.json's '{key}' contains {word}; 'dense' or 'sparse' is needed"
                )))
            }
        };
        return config.listed(key, value, layers)?.iter().map(is_dense).collect();
    }
    let indexes = |field: &'a Option<Field>| {
        list(field).map(|(key, value)| layer_indexes(key, value, layers)).transpose()
    };
    if let Some(others) = indexes(others_indexed)? {
        return Ok((0..layers).map(|layer| !others.contains(&(layer as u64))).collect());
    }
    let first = first.as_ref().map_or(Ok(None), |field| config.count(field))?.unwrap_or(0);
    let last = match last.as_ref().map_or(Ok(None), |field| config.number(field))? {
        None | Some(-1.0) => layers,
        Some(last) if last >= 0.0 && last.fract() == 0.0 => last as usize,
        Some(last) => {
            return Err(Error::new(format!(
                "the last layer with experts is {last}; an index or -1 is needed"
            )));
        }
    };
    let step = step.as_ref().map_or(Ok(None), |field| config.size(field))?.unwrap_or(1);
    let indexed = indexes(indexed)?.unwrap_or_default();
    let is_dense = |layer: usize| {
        layer < first
            || layer > last
            || !(layer + 1).is_multiple_of(step)
            || indexed.contains(&(layer as u64))
    };
    Ok((0..layers).map(is_dense).collect())
}

/// A list of indexes of layers in `config.json`.
fn layer_indexes(key: &str, value: &serde_json::Value, layers: usize) -> Result<BTreeSet<u64>> {
    let index = |index: &serde_json::Value| index.as_u64().filter(|index| *index < layers as u64);
    let indexes = value.as_array().and_then(|list| list.iter().map(index).collect::<Option<BTreeSet<u64>>>());
    indexes.ok_or_else(|| {
        let value = brief(value);
        Error::new(format!("config.json's '{key}' is {value}; a list of indexes below {layers} is needed"))
    })
}

/// The kind of each layer by a list of the model, if it has the list.
fn listed_kinds<'a>(
    listed: &'a ListedKinds,
    config: &ModelConfig<'_>,
    layers: usize,
) -> Result<Option<Vec<&'a str>>> {
    let Some(value) = config.json(&listed.hf) else { return Ok(None) };
    if listed.unless_empty && value.as_array().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    let kind = |word: &serde_json::Value| {
        // A flag of each layer may be a number.
        let number = word.as_u64().map(|number| number.to_string());
        let kind = word.as_str().or(number.as_deref()).and_then(|word| listed.words.get(word));
        kind.map(String::as_str).ok_or_else(|| {
            let (key, word) = (&listed.hf, brief(word));
            Error::new(format!("config.json's '{key}' contains the unknown kind {word}"))
        })
    };
    let text = value.as_str().filter(|_| listed.letters);
    let written: serde_json::Value = text.map_or_else(Vec::new, letters).into();
    let value = if text.is_some() { &written } else { value };
    config.listed(&listed.hf, value, layers)?.iter().map(kind).collect::<Result<Vec<_>>>().map(Some)
}

/// The characters of a list that is written as a string.
fn letters(text: &str) -> Vec<serde_json::Value> {
    text.chars().map(|letter| letter.to_string().into()).collect()
}

/// The kind of each layer, whether it has experts or not.
fn mixer_kinds<'a>(arch: &'a Arch, config: &ModelConfig<'_>, layers: usize) -> Result<Vec<&'a str>> {
    let (rule, pattern) = (&arch.layers, arch.pattern());
    if let Some(listed) = &rule.listed
        && let Some(kinds) = listed_kinds(listed, config, layers)?
    {
        return Ok(kinds);
    }
    if let Some(listed) = &rule.listed_or
        && let Some(kinds) = listed_kinds(listed, config, layers)?
    {
        return Ok(kinds);
    }
    if let Some(ListedKinds { hf, unless_null: Some(field), .. }) = &rule.listed
        && !config.is_gguf()
        && !config.is_null(field)
    {
        let (key, name) = (config.key(field), &arch.name);
        return Err(Error::new(format!(
            "config.json has no '{hf}', which architecture {name} needs unless {key} is null"
        )));
    }
    if let Some(IndexedKind { hf, kind, other }) = &rule.indexed
        && let Some(value) = config.json(hf)
    {
        let indexes = layer_indexes(hf, value, layers)?;
        let kind = |layer: u64| if indexes.contains(&layer) { kind.as_str() } else { other.as_str() };
        return Ok((0..layers as u64).map(kind).collect());
    }
    if let Some(GgufKinds { gguf, zero, other }) = &rule.gguf_listed {
        let sizes = (0..layers).map(|index| config.gguf_size(gguf, index, layers));
        if let Some(sizes) = sizes.collect::<Result<Option<Vec<usize>>>>()? {
            let kind = |size: usize| if size == 0 { zero.as_str() } else { other.as_str() };
            return Ok(sizes.into_iter().map(kind).collect());
        }
    }
    let period = rule.period.as_ref().map_or(Ok(None), |field| config.size(field))?;
    let (Some(first), Some(last)) = (pattern.first(), pattern.last()) else {
        let key = rule.listed.as_ref().map_or("layer_types", |listed| listed.hf.as_str());
        let name = &arch.name;
        return Err(Error::new(format!("config.json has no '{key}', which architecture {name} needs")));
    };
    let kind = |index: usize| match period {
        Some(period) if (index + 1).is_multiple_of(period) => *last,
        Some(_) => *first,
        None => pattern[index % pattern.len()],
    };
    Ok((0..layers).map(kind).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::schema::parse;
    use super::super::shipped::text_of;
    use super::*;

    /// The kinds of the five layers of a Llama 4 with these keys.
    fn kinds(keys: Value) -> Result<Vec<String>> {
        let arch = parse(text_of("llama4").unwrap()).unwrap();
        let kinds = layer_kinds(&arch, &ModelConfig::Hf(&keys), 5)?;
        Ok(kinds.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn an_empty_list_counts_as_none_where_transformers_takes_it_so() {
        let usual = ["rotated", "rotated", "rotated", "unrotated", "rotated"];
        assert_eq!(kinds(json!({})).unwrap(), usual);
        assert_eq!(kinds(json!({ "no_rope_layers": [] })).unwrap(), usual);
        let listed = json!({ "no_rope_layers": [0, 1, 1, 1, 0], "interleave_moe_layer_step": 2 });
        let kinds = kinds(listed).unwrap();
        assert_eq!(kinds, ["unrotated_dense", "rotated", "rotated_dense", "rotated", "unrotated_dense"]);
    }

    #[test]
    fn a_list_without_a_pattern_beside_it_is_needed() {
        let arch = parse(text_of("lfm3").unwrap()).unwrap();
        let keys = json!({ "layer_types": ["conv", "sliding_attention"] });
        assert_eq!(layer_kinds(&arch, &ModelConfig::Hf(&keys), 2).unwrap(), ["conv", "local"]);
        let error = layer_kinds(&arch, &ModelConfig::Hf(&json!({})), 2).unwrap_err().to_string();
        assert_eq!(error, "config.json has no 'layer_types', which architecture lfm3 needs");
    }

    #[test]
    fn lists_that_contradict_each_other_are_refused() {
        let chunked = |first: &str| {
            let kinds =
                [first, "chunked_attention", "chunked_attention", "full_attention", "chunked_attention"];
            json!({ "layer_types": kinds })
        };
        kinds(chunked("chunked_attention")).unwrap();
        let error = kinds(chunked("full_attention")).unwrap_err().to_string();
        assert!(error.starts_with("config.json's 'layer_types' makes layer 0 unrotated"), "{error}");
        assert!(kinds(json!({ "no_rope_layers": [1] })).unwrap_err().to_string().contains("lists 1 layers"));
    }
}
