//! Compares the facts of a file with those of its source, field by field.

use std::collections::BTreeMap;

use girih_file::shorten;
use girih_model::ModelFiles;
use girih_model::arch::{FactValue, Facts};
use serde_json::Value;

use super::finding::{SourceFinding, SourcePart, SourceVerdict};

/// The rounding of numbers that a converter computes in its own order, such as divisors of rotary
/// frequencies: a few operations in single precision, relative to the number.
const COMPUTED: f64 = 1.0 / ((1u32 << 21) as f64);

/// The fact that is not compared: the name of the description. GGUF has one name for several descriptions.
const DESCRIPTION: &str = "architecture";

/// Whether the embedding table is the head; the weights of both are compared.
const TIED: &str = "tied";

/// Names inside a description.
const INNER_NAMES: [&str; 3] = ["kind", "table", "weight"];

/// A fact that differs: its path, and both values.
type Difference = (String, String, String);

/// Compares the facts: one finding for each that differs, or one for all.
pub(super) fn compare(file: &ModelFiles, source: &ModelFiles) -> Vec<SourceFinding> {
    let mut differences: BTreeMap<Difference, Vec<usize>> = BTreeMap::new();
    let is_one = file.facts.name == source.facts.name;
    let [ours, theirs] = [&file.facts, &source.facts].map(fields);
    let mut count = 0;
    let mut found = |layer: Option<usize>, one: &Fields, other: &Fields| {
        for path in one.keys().chain(other.keys().filter(|path| !one.contains_key(*path))) {
            count += 1;
            let last = path.rsplit('.').next().unwrap_or_default();
            if path == DESCRIPTION || path == TIED || !is_one && INNER_NAMES.contains(&last) {
                continue;
            }
            let (one, other) = (one.get(path), other.get(path));
            if !is_equal(one, other) {
                let difference = (path.clone(), text(one), text(other));
                differences.entry(difference).or_default().extend(layer);
            }
        }
    };
    found(None, &ours.model, &theirs.model);
    for (layer, (one, other)) in ours.layers.iter().zip(&theirs.layers).enumerate() {
        found(Some(layer), one, other);
    }
    let keys = keys(file, source);
    let finding = |name: &str, verdict, detail| SourceFinding::new(SourcePart::Facts, name, verdict, detail);
    let mut findings: Vec<SourceFinding> = differences
        .into_iter()
        .map(|((path, one, other), layers)| {
            let stated = keys.iter().find(|key| key.values == [one.clone(), other.clone()]);
            let stated = stated.map(|key| format!(" ({})", key.names)).unwrap_or_default();
            let detail = format!("{one} in the file, {other} in the source{stated}{}", list(&layers));
            finding(&path, SourceVerdict::Differs, detail)
        })
        .collect();
    if ours.layers.len() != theirs.layers.len() {
        let (one, other) = (ours.layers.len(), theirs.layers.len());
        findings.push(finding(
            "layers",
            SourceVerdict::Differs,
            format!("{one} in the file, {other} in the source"),
        ));
    }
    if findings.is_empty() {
        findings.push(finding("all", SourceVerdict::Agrees, format!("{count} values are equal")));
    }
    findings
}

/// The first field that differs, with both values.
pub(crate) fn first_difference(file: &Facts, source: &Facts) -> Option<String> {
    let [one, other] = [file, source].map(fields);
    let is_one = file.name == source.name;
    let is_left_out = |path: &str| {
        let last = path.rsplit('.').next().unwrap_or_default();
        path == DESCRIPTION || !is_one && INNER_NAMES.contains(&last)
    };
    let empty = Fields::new();
    let layers = (0..one.layers.len().max(other.layers.len())).map(|layer| {
        let of = |facts: &'_ FactFields| facts.layers.get(layer).cloned().unwrap_or_else(|| empty.clone());
        (format!(" of layer {layer}"), of(&one), of(&other))
    });
    let model = (String::new(), one.model.clone(), other.model.clone());
    std::iter::once(model).chain(layers).find_map(|(of, one, other)| {
        let path = one
            .keys()
            .chain(other.keys())
            .find(|path| !is_left_out(path) && !is_equal(one.get(*path), other.get(*path)))?;
        let (one, other) = (text(one.get(path)), text(other.get(path)));
        Some(format!("{path}{of} would be {one} instead of {other}"))
    })
}

/// The fields of facts by path, with dots between the levels.
type Fields = BTreeMap<String, Value>;

/// The fields of a model, and those of each layer.
struct FactFields {
    model: Fields,
    layers: Vec<Fields>,
}

fn fields(facts: &Facts) -> FactFields {
    let mut facts = serde_json::to_value(facts).unwrap_or_default();
    let layers = facts.as_object_mut().and_then(|facts| facts.remove("layers"));
    let layers = layers.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    FactFields { model: flat(&facts), layers: layers.iter().map(flat).collect() }
}

fn flat(value: &Value) -> Fields {
    let mut fields = Fields::new();
    flatten("", value, &mut fields);
    fields
}

/// Adds the fields of an object, whose depth is that of the types of facts.
fn flatten(path: &str, value: &Value, fields: &mut Fields) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, fields);
            }
        }
        // What is absent has no field.
        Value::Null => {}
        value => {
            fields.insert(path.to_owned(), value.clone());
        }
    }
}

fn is_equal(one: Option<&Value>, other: Option<&Value>) -> bool {
    match (one, other) {
        (Some(Value::Number(one)), Some(Value::Number(other))) if one.is_f64() && other.is_f64() => {
            let (one, other) = (one.as_f64().unwrap_or(f64::NAN), other.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= COMPUTED * one.abs().max(other.abs())
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_equal(Some(a), Some(b)))
        }
        (one, other) => one == other,
    }
}

/// A value in words; facts are single precision, so their shortest digits are those of an `f32`.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:?}", number.as_f64().unwrap_or(f64::NAN) as f32)
        }
        Some(Value::Array(list)) if list.is_empty() => "none".to_owned(),
        Some(Value::Array(list)) if list.len() > 4 => {
            let ends = [list.first(), list.last()].map(text);
            format!("{} values from {} to {}", list.len(), ends[0], ends[1])
        }
        Some(Value::String(text)) => shorten(text),
        Some(value) => value.to_string(),
    }
}

/// Layers in words, for the end of a sentence.
fn list(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    match runs.collect::<Vec<_>>() {
        runs if runs.is_empty() => String::new(),
        runs => format!("; layers {}", shorten(runs.join(", "))),
    }
}

/// A parameter that differs: both values, and the keys that state it.
struct Stated {
    values: [String; 2],
    names: String,
}

/// The parameters that differ, by which a fact that differs finds its keys: a fact has the value of its parameter.
fn keys(file: &ModelFiles, source: &ModelFiles) -> Vec<Stated> {
    let theirs = source.arch().parameters();
    let mut found = Vec::new();
    for parameter in file.arch().parameters() {
        let Some(other) = theirs.iter().find(|other| other.name == parameter.name) else { continue };
        let keys = parameter.field.gguf.iter().map(String::as_str).chain(other.field.hf.iter());
        let names = keys.map(|key| format!("'{key}'")).collect::<Vec<_>>().join(", ");
        let first = |values: Vec<(Option<usize>, FactValue)>| values.first().map(|(_, value)| stated(*value));
        let values = [first(parameter.values(&file.facts)), first(other.values(&source.facts))];
        if values[0] != values[1] && !names.is_empty() {
            found.push(Stated {
                values: values.map(|value| value.unwrap_or_else(|| "none".to_owned())),
                names,
            });
        }
    }
    found
}

fn stated(value: FactValue) -> String {
    match value {
        FactValue::Size(size) => size.to_string(),
        FactValue::Number(number) => format!("{number:?}"),
        FactValue::Word(word) => word.to_owned(),
        FactValue::Flag(flag) => flag.to_string(),
    }
}
