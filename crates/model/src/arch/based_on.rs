//! A description as its text and the ones that it is based on state it together.
//!
//! `based_on = "NAME"` names a shipped description; chains are allowed. Tables merge at every
//! level, and any other value replaces that of the base. `false` removes the base's value, unless
//! that is true or false, too. `name`, `[match]`, `[harmless]`, `[q4nx]` and `image_tower` are never those of the base.
//!
//! `with = ["NAME"]` puts other descriptions, which have no base, between the base and the text, the last one
//! over the others.
//!
//! `hf_below = "OBJECT"` moves the base's keys of `config.json` below that object. In keys of GGUF,
//! `{arch}` stands for the first name in `match.gguf`; without such a name, the description has
//! no key of GGUF at all.
//!
//! A `[layer.KIND]` is merged in the same way with `[mixer]`, `[ffn]`, `[norms]` and `[residual]`, which
//! describe all kinds of layers. A part with another `kind` than theirs replaces theirs. With `[dense]`, each
//! kind also has a `KIND_dense`, whose feed-forward part that is; a `[layer.KIND_dense]` states what else differs.

use girih_file::{fault_in_line, quote};
use girih_tensor::{Error, Result};
use toml::{Table, Value};

use super::shipped::text_of;

/// The keys of GGUF in a field, and the names of GGUF in a weight.
const GGUF_KEYS: [&str; 5] = ["gguf", "gguf_or", "gguf_also", "gguf_listed", "gguf_next"];

/// The tables whose `hf` are no keys of `config.json`.
const TENSORS: [&str; 2] = ["weights", "unused"];

/// The parts of a layer.
const PARTS: [&str; 4] = ["mixer", "ffn", "norms", "residual"];

/// The kind of all layers of an architecture that names none.
const ONLY_KIND: &str = "full";

/// The end of the names of kinds of layers with the feed-forward part of `[dense]`.
pub(super) const DENSE_KIND: &str = "_dense";

/// What a base never passes on.
const OWN: [&str; 5] = ["name", "match", "harmless", "q4nx", "image_tower"];

/// The description in `text`, merged with those that it is based on.
///
/// # Errors
/// When the text is no TOML, or a base is unknown or based on itself.
pub(super) fn merged(text: &str) -> Result<Table> {
    merged_with(text, text_of)
}

/// As [`merged`], with bases by name from `text_of`.
fn merged_with<'a>(text: &str, text_of: impl Fn(&str) -> Option<&'a str>) -> Result<Table> {
    let mut chain = vec![table(text)?];
    let mut names: Vec<String> = Vec::new();
    let known = |name: &str| {
        text_of(name)
            .ok_or_else(|| Error::new(format!("is based on {}, which girih does not have", quote(name))))
    };
    loop {
        let own = chain.last_mut().expect("it has the text's own table");
        let base = taken(own, "based_on")?;
        let with = own.remove("with").map_or(Ok(Vec::new()), |with| {
            let wrong = |_| Error::new("has a 'with' that is no list of strings; names in quotes are needed");
            with.try_into::<Vec<String>>().map_err(wrong)
        })?;
        for name in with.iter().rev() {
            chain.push(table(known(name)?)?);
        }
        let Some(name) = base else { break };
        let base = known(&name)?;
        if names.contains(&name) {
            return Err(Error::new(format!("is based on {}, which is based on itself", quote(&name))));
        }
        names.push(name);
        chain.push(table(base)?);
    }
    let mut merged = Table::new();
    while let Some(mut own) = chain.pop() {
        if let Some(object) = taken(&mut own, "hf_below")? {
            move_below(&mut merged, &object);
        }
        OWN.iter().for_each(|key| drop(merged.remove(*key)));
        merge(&mut merged, own);
    }
    name_in_gguf(&mut merged);
    Ok(merged)
}

/// The text of a description in the form of the files in `archs/`: an entry in a line.
pub(super) fn printed(table: &Table) -> String {
    let (tables, single): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.is_table());
    let line = |(key, value): (&String, &Value)| Table::from_iter([(key.clone(), value.clone())]).to_string();
    let mut text: String = single.into_iter().map(line).collect();
    for (name, entries) in tables {
        text += &format!("\n[{name}]\n");
        for (key, value) in entries.as_table().into_iter().flatten() {
            let is_bare =
                !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            let key = if is_bare { key.clone() } else { Value::from(key.as_str()).to_string() };
            text += &format!("{key} = {value}\n");
        }
    }
    text
}

fn table(text: &str) -> Result<Table> {
    text.parse::<Table>().map_err(|error| {
        let fault = fault_in_line(text, error.span().map(|span| span.start), error.message());
        Error::new(format!("is not a valid architecture: {fault}"))
    })
}

/// Takes a string out of a table.
fn taken(table: &mut Table, key: &str) -> Result<Option<String>> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::new(format!("has a '{key}' that is no string; a name in quotes is needed"))),
    }
}

/// Puts the values of `own` over those of `base`.
fn merge(base: &mut Table, own: Table) {
    let mut open = vec![(base, own)];
    while let Some((base, own)) = open.pop() {
        let mut tables = Table::new();
        for (key, value) in own {
            match (base.get(&key), value) {
                (Some(Value::Table(_)), Value::Table(own)) => drop(tables.insert(key, Value::Table(own))),
                (Some(old), Value::Boolean(false)) if !old.is_bool() => drop(base.remove(&key)),
                (_, value) => drop(base.insert(key, value)),
            }
        }
        for (key, old) in base.iter_mut() {
            if let (Value::Table(old), Some(Value::Table(own))) = (old, tables.remove(key)) {
                open.push((old, own));
            }
        }
    }
}

/// Completes the description of each kind of layers with the parts that all kinds share.
///
/// # Errors
/// When a description is no table.
pub(super) fn describe_layers(merged: &mut Table) -> Result<()> {
    let kinds = match merged.remove("layer") {
        None => Table::from_iter([(ONLY_KIND.to_owned(), Value::Table(Table::new()))]),
        Some(Value::Table(kinds)) => kinds,
        Some(_) => return Err(Error::new("has a 'layer' that is no table; [layer.KIND] is needed")),
    };
    let is_dense = |kind: &str| kind.ends_with(DENSE_KIND) && merged.contains_key("dense");
    let (mut dense_kinds, mut kinds): (Table, Table) =
        kinds.into_iter().partition(|(kind, _)| is_dense(kind));
    for (kind, own) in &mut kinds {
        let Value::Table(own) = own else {
            return Err(Error::new(format!(
                "has a 'layer.{kind}' that is no table; [layer.{kind}] is needed"
            )));
        };
        let mut layer = Table::new();
        for part in PARTS {
            let kind_of = |table: &Table| table.get(part).and_then(|part| part.get("kind")).cloned();
            let is_other = kind_of(own).is_some_and(|own| Some(own) != kind_of(merged));
            if let Some(shared) = merged.get(part).filter(|_| !is_other) {
                layer.insert(part.to_owned(), shared.clone());
            }
        }
        merge(&mut layer, std::mem::take(own));
        *own = layer;
    }
    if let Some(dense) = merged.remove("dense") {
        let mut with_dense = |(kind, layer): (&String, &Value)| {
            let (name, mut layer) = (dense_kind(kind), layer.clone());
            let table = layer.as_table_mut()?;
            table.insert("ffn".to_owned(), dense.clone());
            if let Some(Value::Table(own)) = dense_kinds.remove(&name) {
                merge(table, own);
            }
            Some((name, layer))
        };
        let dense: Vec<(String, Value)> = kinds.iter().filter_map(&mut with_dense).collect();
        kinds.extend(dense);
    }
    if let Some(kind) = dense_kinds.keys().next() {
        return Err(Error::new(format!("has a 'layer.{kind}' but no such layer without '{DENSE_KIND}'")));
    }
    merged.insert("layer".to_owned(), Value::Table(kinds));
    ["mixer", "ffn", "residual"].iter().for_each(|part| drop(merged.remove(*part)));
    Ok(())
}

/// The name of a kind of layers with the feed-forward part of `[dense]`.
pub(super) fn dense_kind(kind: &str) -> String {
    format!("{kind}{DENSE_KIND}")
}

/// Calls `change` for a table and all tables within.
fn for_each_table(root: &mut Table, mut change: impl FnMut(&mut Table)) {
    let mut open = vec![root];
    while let Some(table) = open.pop() {
        change(table);
        open.extend(table.iter_mut().filter_map(|(_, value)| value.as_table_mut()));
    }
}

/// Changes a string, or each string of a list.
fn change_strings(value: &mut Value, change: impl Fn(&str) -> String) {
    let list = match value {
        Value::Array(list) => list.as_mut_slice(),
        single => std::slice::from_mut(single),
    };
    for value in list {
        if let Value::String(text) = value {
            *text = change(text);
        }
    }
}

/// Moves the keys of `config.json` below an object.
fn move_below(base: &mut Table, object: &str) {
    let below = |key: &str| format!("{object}.{key}");
    for (_, value) in base.iter_mut().filter(|(name, _)| !TENSORS.contains(&name.as_str())) {
        let Value::Table(table) = value else { continue };
        for_each_table(table, |table| {
            if let Some(keys) = table.get_mut("hf") {
                change_strings(keys, below);
            }
        });
    }
    for name in ["refuse", "biases"] {
        if let Some(Value::Table(keys)) = base.get_mut(name) {
            *keys = std::mem::take(keys).into_iter().map(|(key, value)| (below(&key), value)).collect();
        }
    }
}

/// Fills the architecture's name into the keys of GGUF, or removes them if it has none.
fn name_in_gguf(merged: &mut Table) {
    let names = merged.get("match").and_then(|found| found.get("gguf")).and_then(Value::as_array);
    let name = names.and_then(|names| names.first()).and_then(Value::as_str).map(str::to_owned);
    for_each_table(merged, |table| {
        for key in GGUF_KEYS {
            match (&name, table.get_mut(key)) {
                (Some(name), Some(keys)) => change_strings(keys, |key| key.replace("{arch}", name)),
                (None, Some(_)) => drop(table.remove(key)),
                (_, None) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::shipped::SHIPPED;
    use super::*;

    fn entries(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn values_are_replaced_and_false_removes() {
        let mut base = entries("a = {x = 1, y = {z = [1, 2]}, flag = true}\nb = 'kept'\nc = {d = 1}");
        merge(
            &mut base,
            entries("a = {x = false, y = {z = [3], w = 4}, flag = false}\nc = false\ne = false"),
        );
        assert_eq!(base, entries("a = {y = {z = [3], w = 4}, flag = false}\nb = 'kept'\ne = false"));
    }

    #[test]
    fn a_base_gives_neither_its_name_nor_its_models() {
        let merged = merged("based_on = 'llama'\nname = 'x'").unwrap();
        assert_eq!(merged["name"].as_str(), Some("x"));
        assert!(!merged.contains_key("match") && !merged.contains_key("harmless"));
        assert!(merged["weights"].get("embed.table").is_some_and(|weight| weight.get("gguf").is_none()));
    }

    #[test]
    fn keys_are_moved_and_named() {
        let text = "based_on = 'gemma3'\nname = 'x'\nhf_below = 'part'\n[match]\ngguf = ['y']\n[mixer]\nheads.default = 8";
        let merged = merged(text).unwrap();
        let heads = entries("hf = 'part.num_attention_heads'\ngguf = 'y.attention.head_count'\ndefault = 8");
        assert_eq!(merged["mixer"]["heads"], Value::Table(heads));
        assert_eq!(merged["weights"]["embed.table"]["hf"].as_str(), Some("model.embed_tokens.weight"));
        assert!(merged["refuse"].get("part.attention_bias").is_some());
    }

    #[test]
    fn a_printed_description_has_the_same_entries() {
        for (name, text) in SHIPPED {
            let merged = merged(text).unwrap();
            assert_eq!(super::merged(&printed(&merged)).unwrap(), merged, "{name}");
        }
    }

    #[test]
    fn a_kind_of_layers_has_the_shared_parts_or_its_own() {
        let mut table = entries(
            "mixer = {kind = 'a', x = 1, y = 2}\nffn = {kind = 'b'}\nnorms = {n = 1}\n\
             [layer.one]\nmixer = {x = 3, y = false}\n[layer.two]\nmixer = {kind = 'c', z = 4}\nnorms.n = 2",
        );
        describe_layers(&mut table).unwrap();
        let expected = "norms = {n = 1}\n\
             [layer.one]\nmixer = {kind = 'a', x = 3}\nffn = {kind = 'b'}\nnorms = {n = 1}\n\
             [layer.two]\nmixer = {kind = 'c', z = 4}\nffn = {kind = 'b'}\nnorms = {n = 2}";
        assert_eq!(table, entries(expected));
        let mut none = entries("mixer = {x = 1}");
        describe_layers(&mut none).unwrap();
        assert_eq!(none, entries("layer.full.mixer = {x = 1}"));
        assert!(describe_layers(&mut entries("layer.a = 1")).is_err());
    }

    #[test]
    fn a_wrong_base_is_refused() {
        for (text, words) in [
            ("based_on = 'x'", "is based on 'x', which girih does not have"),
            ("based_on = 1", "'based_on' that is no string"),
            ("based_on = 'llama'\nhf_below = []", "'hf_below' that is no string"),
        ] {
            assert!(merged(text).unwrap_err().to_string().contains(words), "{text}");
        }
        let bases = |name: &str| ["based_on = 'b'", "based_on = 'a'"].get(usize::from(name == "b")).copied();
        let error = merged_with("based_on = 'a'", bases).unwrap_err().to_string();
        assert!(error.contains("is based on 'a', which is based on itself"), "{error}");
    }
}
