//! Suggests a description for a model that none describes, from the keys of its `config.json` and the names of its
//! tensors. It starts from the nearest known family and takes what differs from other known families: where a key
//! or a tensor's name has a meaning in one of them, it is suggested with that meaning. Only `girih verify` can tell
//! whether a suggestion is right; what is not decided is listed.

use std::collections::BTreeSet;

use girih_file::quote;
use girih_tensor::{Error, Result};
use serde_json::Value as Json;
use toml::{Table, Value};

use super::based_on::{merged, printed};
use super::config::ModelConfig;
use super::keys::unread_keys;
use super::schema::{self, Arch, Field};
use super::shipped::SHIPPED;

/// What a known tensor counts in the comparison of families, in keys.
const TENSOR_WEIGHT: i64 = 2;

/// The maximum number of open questions of one kind that are listed.
const LISTED: usize = 20;

/// A suggested description.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// The description as a file of `archs/` would have it, with the open questions as comments.
    pub text: String,
    /// The name of the family that it is based on.
    pub base: String,
    /// What could not be decided, a sentence each.
    pub undecided: Vec<String>,
}

/// A known family.
struct Family {
    name: &'static str,
    arch: Arch,
    /// Its whole description.
    table: Table,
}

impl Family {
    /// The names of a weight in safetensors.
    fn tensors_of(&self, weight: &str) -> BTreeSet<&str> {
        let Some(weight) = self.arch.weights.get(weight) else { return BTreeSet::new() };
        weight.hf.iter().map(String::as_str).chain(weight.hf_or.iter().map(|or| or.hf.as_str())).collect()
    }

    /// The weight that a tensor of this name holds.
    fn weight_of(&self, tensor: &str) -> Option<&str> {
        self.arch.weights.keys().map(String::as_str).find(|weight| self.tensors_of(weight).contains(tensor))
    }

    /// Whether it knows a tensor of this name, used or not.
    fn knows(&self, tensor: &str) -> bool {
        self.weight_of(tensor).is_some() || self.arch.unused.hf.iter().any(|unused| unused == tensor)
    }

    /// The parameter that is read from a key.
    fn parameter_of(&self, key: &str) -> Option<String> {
        let mut parameters = self.arch.parameters().into_iter();
        Some(parameters.find(|parameter| parameter.field.hf.iter().any(|path| path == key))?.name)
    }

    /// The entry of its description at a path with dots.
    fn entry(&self, path: &str) -> Option<&Value> {
        let mut levels = path.split('.');
        let first = self.table.get(levels.next()?)?;
        levels.try_fold(first, |level, key| level.get(key))
    }
}

/// The model, as the suggestion sees it.
struct Unknown<'a> {
    config: &'a Json,
    /// The names of its tensors, with `{i}` and `{e}` for the first two numbers.
    tensors: BTreeSet<String>,
}

impl Unknown<'_> {
    fn has_key(&self, key: &str) -> bool {
        ModelConfig::Hf(self.config).json(key).is_some()
    }

    /// How near a family is: what both know, less what only the family needs.
    fn nearness(&self, family: &Family) -> i64 {
        let known = self.tensors.iter().filter(|tensor| family.knows(tensor)).count() as i64;
        let missing = self.missing(family).len() as i64;
        let keys = family.arch.parameters();
        let keys = keys.iter().filter(|one| one.field.hf.iter().any(|key| self.has_key(key))).count() as i64;
        TENSOR_WEIGHT * (known - missing) + keys
    }

    /// The number of parameters of a family that the model does not state.
    fn unstated(&self, family: &Family) -> i64 {
        let parameters = family.arch.parameters();
        let is_unstated =
            |field: &Field| field.hf.iter().count() > 0 && !field.hf.iter().any(|key| self.has_key(key));
        parameters.iter().filter(|one| is_unstated(one.field)).count() as i64
    }

    /// The weights that a family needs, of which the model has no tensor.
    fn missing<'f>(&self, family: &'f Family) -> Vec<&'f str> {
        let needed = family.arch.weights.iter().filter(|(_, weight)| !weight.optional && weight.hf.is_some());
        let names = needed.map(|(name, _)| name.as_str());
        names.filter(|name| !family.tensors_of(name).iter().any(|hf| self.tensors.contains(*hf))).collect()
    }
}

/// Suggests a description for a model with this `config.json` and tensors of these names.
///
/// # Errors
/// When `config.json` does not name the model's architecture, or a shipped description is malformed, which a
/// test excludes.
pub fn suggest<'a>(config: &Json, tensors: impl Iterator<Item = &'a str>) -> Result<Suggestion> {
    let model = Unknown { config, tensors: tensors.map(template).collect() };
    let families = families()?;
    // Of equally near families, the one with the fewest unstated parameters; of these, the first of the list.
    let base = families.iter().rev().max_by_key(|family| (model.nearness(family), -model.unstated(family)));
    let base = base.ok_or_else(|| Error::new("there is no known family to start from"))?;
    let mut draft = DescriptionDraft {
        model: &model,
        base,
        families: &families,
        table: head(config, base)?,
        undecided: Vec::new(),
    };
    draft.parameters();
    draft.keys()?;
    draft.missing_weights();
    draft.other_tensors();
    draft.check();
    let DescriptionDraft { table, mut undecided, .. } = draft;
    undecided.push(
        "whether the operations between the weights are those of the base: compare the model's code with \
         'girih inspect --arch', and its outputs with 'girih verify'"
            .to_owned(),
    );
    let title =
        format!("# Suggested by girih from the keys and tensors of a model; based on {}.\n", base.name);
    let notes: String = undecided.iter().map(|one| format!("# undecided: {one}\n")).collect();
    let text = format!("{title}{notes}{}", printed(&table));
    Ok(Suggestion { text, base: base.name.to_owned(), undecided })
}

/// The families of models that generate text.
fn families() -> Result<Vec<Family>> {
    let all = SHIPPED
        .iter()
        .map(|&(name, text)| Ok(Family { name, arch: schema::parse(text)?, table: merged(text)? }));
    let all: Vec<Family> = all.collect::<Result<_>>()?;
    Ok(all.into_iter().filter(|family| family.arch.head.is_some()).collect())
}

/// A tensor's name with `{i}` for the first number between dots and `{e}` for the second.
fn template(name: &str) -> String {
    let mut marks = ["{i}", "{e}"].into_iter();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts =
        name.split('.').map(|part| Some(part).filter(is_number).and_then(|_| marks.next()).unwrap_or(part));
    parts.collect::<Vec<_>>().join(".")
}

/// The first entries of the description.
fn head(config: &Json, base: &Family) -> Result<Table> {
    let classes = ModelConfig::Hf(config).architectures()?;
    let model_type = config.get("model_type").and_then(Json::as_str);
    let mut matches = Table::new();
    matches.insert("hf".to_owned(), classes.clone().into());
    if let Some(model_type) = model_type {
        matches.insert("hf_model_type".to_owned(), vec![model_type].into());
    }
    let mut table = Table::new();
    table.insert("name".to_owned(), model_type.unwrap_or(&classes[0]).into());
    table.insert("based_on".to_owned(), base.name.into());
    table.insert("match".to_owned(), matches.into());
    Ok(table)
}

/// A description in the making.
struct DescriptionDraft<'a> {
    model: &'a Unknown<'a>,
    base: &'a Family,
    families: &'a [Family],
    table: Table,
    undecided: Vec<String>,
}

impl DescriptionDraft<'_> {
    /// Parameters of the base that the model states under other keys.
    fn parameters(&mut self) {
        let base = self.base;
        for parameter in base.arch.parameters() {
            let (name, field) = (&parameter.name, parameter.field);
            // Models may omit all of a table of RoPE but its base.
            let is_optional = name.starts_with("rope.") && !name.ends_with(".base");
            if is_optional
                || field.hf.iter().count() == 0
                || field.hf.iter().any(|key| self.model.has_key(key))
            {
                continue;
            }
            let keys = self.families.iter().filter_map(|family| family.entry(name)?.get("hf"));
            let has = |key: &&Value| key.as_str().is_some_and(|key| self.model.has_key(key));
            match keys.into_iter().find(has) {
                Some(key) => put(&mut self.table, &format!("{name}.hf"), key.clone()),
                None if field.default.is_none() && field.hf_default.is_none() => {
                    let keys = field.hf.iter().map(quote).collect::<Vec<_>>().join(" or ");
                    self.undecided.push(format!("which key states {name}: there is no {keys}"));
                }
                None => {}
            }
        }
    }

    /// Keys of the model that the base does not read.
    fn keys(&mut self) -> Result<()> {
        let mut open = Vec::new();
        for (key, value) in unread_keys(&self.base.arch, self.model.config)? {
            if !self.takes_parameter(&key) && !self.takes_bias_flag(&key) && !self.takes_harmless(&key) {
                open.push(match self.reason_against(&key) {
                    Some(why) => format!("what {} = {value} means here; elsewhere: {why}", quote(&key)),
                    None => format!("what {} = {value} means: no family reads it", quote(&key)),
                });
            }
        }
        let more = open.len().saturating_sub(LISTED);
        self.undecided.extend(open.into_iter().take(LISTED));
        if more > 0 {
            self.undecided.push(format!("what {more} more keys mean"));
        }
        Ok(())
    }

    /// Takes the parameter that another family reads from a key, if the base reads it from no key.
    fn takes_parameter(&mut self, key: &str) -> bool {
        if self.table.values().any(|table| mentions(table, key)) {
            return true;
        }
        for family in self.families {
            let Some(name) = family.parameter_of(key) else { continue };
            let Some(entry) = family.entry(&name) else { continue };
            let own = self.base.entry(&name).and_then(|entry| entry.get("hf"));
            if own.is_some() {
                continue;
            }
            put(&mut self.table, &name, without_gguf(entry));
            self.undecided.push(format!("whether {} is {name}, as in {}", quote(key), family.name));
            return true;
        }
        false
    }

    /// Takes another family's flag of biases with this key.
    fn takes_bias_flag(&mut self, key: &str) -> bool {
        let mut entries = self.families.iter().filter_map(|family| family.table.get("biases")?.get(key));
        let Some(entry) = entries.next().cloned() else { return false };
        entry_of(&mut self.table, &["biases"]).insert(key.to_owned(), entry);
        true
    }

    /// Takes the statement of another family that a key is harmless, if it is with the model's value.
    fn takes_harmless(&mut self, key: &str) -> bool {
        let Some(value) = ModelConfig::Hf(self.model.config).json(key) else { return false };
        let family = self
            .families
            .iter()
            .find(|family| family.arch.harmless.get(key).is_some_and(|harmless| harmless.is.contain(value)));
        let entry =
            family.and_then(|family| Some((family.name, family.table.get("harmless")?.get(key)?.clone())));
        let Some((name, entry)) = entry else { return false };
        entry_of(&mut self.table, &["harmless"]).insert(key.to_owned(), entry);
        self.undecided.push(format!("whether {} changes no number, as in {name}", quote(key)));
        true
    }

    /// Why a family refuses a key.
    fn reason_against(&self, key: &str) -> Option<String> {
        let entry = self.families.iter().find_map(|family| family.table.get("refuse")?.get(key))?;
        let why = entry.as_str().or_else(|| entry.get("why")?.as_str());
        Some(why?.to_owned())
    }

    /// Weights of the base that the model has under other names, or not at all.
    fn missing_weights(&mut self) {
        let base = self.base;
        for name in self.model.missing(base) {
            match self.other_entry(name) {
                Some(entry) => drop(entry_of(&mut self.table, &["weights"]).insert(name.to_owned(), entry)),
                None => {
                    self.undecided.push(format!("which tensor is {name}: there is no {}", self.names(name)))
                }
            }
        }
    }

    /// Another family's entry of a weight, whose tensor the model has.
    fn other_entry(&self, weight: &str) -> Option<Value> {
        let has =
            |family: &&Family| family.tensors_of(weight).iter().any(|hf| self.model.tensors.contains(*hf));
        let family = self.families.iter().find(has)?;
        Some(without_gguf(family.table.get("weights")?.get(weight)?))
    }

    /// The base's names of a weight's tensor.
    fn names(&self, weight: &str) -> String {
        self.base.tensors_of(weight).into_iter().map(quote).collect::<Vec<_>>().join(" or ")
    }

    /// Tensors of the model that the base does not know.
    fn other_tensors(&mut self) {
        let model = self.model;
        let mut open = Vec::new();
        for tensor in model.tensors.iter().filter(|tensor| !self.base.knows(tensor)) {
            let suggested = self.table.get("weights").is_some_and(|weights| mentions(weights, tensor));
            if suggested {
                continue;
            }
            let found = self.families.iter().find_map(|family| Some((family, family.weight_of(tensor)?)));
            let known = found.and_then(|(family, weight)| {
                let entry = family.table.get("weights")?.get(weight)?;
                Some((family, weight.to_owned(), without_gguf(entry)))
            });
            match known {
                Some((family, weight, entry)) => {
                    self.take_switch(family, &weight);
                    entry_of(&mut self.table, &["weights"]).insert(weight, entry);
                }
                None => open.push(format!("what the tensor {} is: no family has it", quote(tensor))),
            }
        }
        let more = open.len().saturating_sub(LISTED);
        self.undecided.extend(open.into_iter().take(LISTED));
        if more > 0 {
            self.undecided.push(format!("what {more} more tensors are"));
        }
    }

    /// Takes the switch with which another family uses a weight that the base lacks.
    fn take_switch(&mut self, family: &Family, weight: &str) {
        let path = if weight.contains(".mixer.") && weight.ends_with(".norm") {
            "mixer.qk_norm"
        } else if weight.contains(".norms.") {
            "norms.places"
        } else {
            return;
        };
        if let (Some(entry), true) = (family.entry(path), family.entry(path) != self.base.entry(path)) {
            put(&mut self.table, path, entry.clone());
            self.undecided.push(format!("whether {path} is {entry}, as in {}", family.name));
        }
    }

    /// Notes what makes the description invalid.
    fn check(&mut self) {
        let text = printed(&self.table);
        if let Err(error) = schema::parse(&text) {
            let sentence = error.to_string().replace('\n', " ");
            self.undecided.push(format!("how this becomes a valid description: {sentence}"));
        }
    }
}

/// Whether a part of a description has a text as one of its values.
fn mentions(value: &Value, text: &str) -> bool {
    match value {
        Value::String(own) => own == text,
        Value::Array(list) => list.iter().any(|one| mentions(one, text)),
        Value::Table(table) => table.values().any(|one| mentions(one, text)),
        _ => false,
    }
}

/// An entry without its keys and names of GGUF, which belong to another family.
fn without_gguf(entry: &Value) -> Value {
    let Value::Table(table) = entry else { return entry.clone() };
    Value::Table(table.clone().into_iter().filter(|(key, _)| !key.starts_with("gguf")).collect())
}

/// Writes a value at a path with dots.
fn put(table: &mut Table, path: &str, value: Value) {
    let mut levels: Vec<&str> = path.split('.').collect();
    let Some(last) = levels.pop() else { return };
    entry_of(table, &levels).insert(last.to_owned(), value);
}

/// The table at a path, made where it is missing.
fn entry_of<'t>(table: &'t mut Table, path: &[&str]) -> &'t mut Table {
    path.iter().fold(table, |level, key| {
        let entry = level.entry(*key).or_insert_with(|| Value::Table(Table::new()));
        if !entry.is_table() {
            *entry = Value::Table(Table::new());
        }
        entry.as_table_mut().expect("it was just made one")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The names of a Llama's tensors, and those that replace some.
    fn llama(renames: &[(&str, &str)]) -> Vec<String> {
        let arch = schema::parse(SHIPPED.iter().find(|(name, _)| *name == "llama").unwrap().1).unwrap();
        let needed = arch.weights.values().filter(|weight| !weight.optional);
        let names = needed.filter_map(|weight| Some(weight.hf.as_ref()?.replace("{i}", "0")));
        let renamed = names.map(|name| renames.iter().fold(name, |name, (old, new)| name.replace(old, new)));
        renamed.chain(["lm_head.weight".to_owned()]).collect()
    }

    fn config(extra: Json) -> Json {
        let mut config = json!({
            "architectures": ["NewForCausalLM"], "model_type": "new", "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "intermediate_size": 128,
            "vocab_size": 256
        });
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        config
    }

    fn suggested(extra: Json, tensors: &[String]) -> Suggestion {
        suggest(&config(extra), tensors.iter().map(String::as_str)).unwrap()
    }

    #[test]
    fn a_model_like_llama_is_based_on_a_family_that_needs_no_other_weight() {
        let suggestion = suggested(json!({}), &llama(&[]));
        let arch = schema::parse(&suggestion.text).unwrap();
        assert_eq!((arch.name.as_str(), &arch.matches.hf[..]), ("new", &["NewForCausalLM".to_owned()][..]));
        assert_eq!(suggestion.undecided.len(), 1, "{:?}", suggestion.undecided);
    }

    #[test]
    fn a_key_and_a_tensor_of_another_family_keep_their_meaning() {
        let suggestion = suggested(json!({"residual_multiplier": 0.5}), &llama(&[]));
        let arch = schema::parse(&suggestion.text).unwrap();
        let is_read = |name: &str| {
            let mut parameters = arch.parameters().into_iter();
            parameters.any(|parameter| parameter.field.hf.iter().any(|key| key == name))
        };
        assert!(is_read("residual_multiplier"), "{}", suggestion.text);
        let mut tensors = llama(&[]);
        tensors.extend(["q", "k"].map(|part| format!("model.layers.0.self_attn.{part}_norm.weight")));
        let suggestion = suggested(json!({}), &tensors);
        let arch = schema::parse(&suggestion.text).unwrap();
        assert!(arch.weights.contains_key("layers.{i}.mixer.q.norm"), "{}", suggestion.text);
    }

    #[test]
    fn what_no_family_has_is_undecided_by_name() {
        let tensors = llama(&[("q_proj", "q_thing")]);
        let suggestion = suggested(json!({"new_switch": true}), &tensors);
        for text in ["'new_switch' = true", "self_attn.q_thing.weight", "layers.{i}.mixer.q.weight"] {
            assert!(
                suggestion.undecided.iter().any(|one| one.contains(text)),
                "{text}: {:?}",
                suggestion.undecided
            );
        }
    }

    #[test]
    fn a_model_without_the_name_of_its_architecture_is_refused() {
        let error = suggest(&json!({}), std::iter::empty()).unwrap_err();
        assert!(error.to_string().contains("'architectures'"), "{error}");
    }

    #[test]
    fn the_first_two_numbers_of_a_name_are_layer_and_expert() {
        assert_eq!(
            template("model.layers.10.mlp.experts.3.w1.weight"),
            "model.layers.{i}.mlp.experts.{e}.w1.weight"
        );
        assert_eq!(template("transformer.wte.weight"), "transformer.wte.weight");
    }
}
