//! The ids of a server's models in the APIs.

use std::path::Path;

use girih_file::quote;

use crate::error::{Error, Result};

/// The maximum number of bytes of a name.
const MAX_NAME_BYTES: usize = 200;

/// A model under the name that it has in the APIs.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedModel<'a> {
    /// The name.
    pub name: String,
    /// What is opened.
    pub source: &'a str,
}

/// The models of the arguments, `MODEL` or `NAME=MODEL`, or under these `names` in order.
///
/// # Errors
/// When there are more or fewer names than models, a model has two names, two have the same, or a name is
/// none.
pub fn named<'a>(models: &'a [String], names: &[String]) -> Result<Vec<NamedModel<'a>>> {
    if !names.is_empty() && names.len() != models.len() {
        return Err(Error::call(format!(
            "--served-name is given {} times for {} models: give one name for each, or NAME=MODEL",
            names.len(),
            models.len()
        )));
    }
    let mut named: Vec<NamedModel<'a>> = Vec::new();
    for (at, model) in models.iter().enumerate() {
        let model = one(model, names.get(at))?;
        if named.iter().any(|other| other.name == model.name) {
            let name = quote(&model.name);
            return Err(Error::call(format!(
                "two models are named {name}: remove one, or give it another name as NAME=MODEL"
            )));
        }
        named.push(model);
    }
    Ok(named)
}

/// A model, under its name of the option if there is one.
fn one<'a>(model: &'a str, option: Option<&String>) -> Result<NamedModel<'a>> {
    let (name, source) = split(model);
    let chosen = match (name, option) {
        (Some(name), Some(option)) => {
            let (name, option) = (quote(name), quote(option));
            return Err(Error::call(format!(
                "a model is named {name} and, by --served-name, {option}: give one name"
            )));
        }
        (Some(name), None) => name,
        (None, Some(option)) => option,
        (None, None) => return Ok(NamedModel { name: usual_name(source), source }),
    };
    let is_of_name = |c: char| !c.is_whitespace() && !c.is_control();
    if chosen.is_empty() || chosen.len() > MAX_NAME_BYTES || !chosen.chars().all(is_of_name) {
        return Err(Error::call(format!(
            "{} is no name of a served model: 1 to {MAX_NAME_BYTES} bytes without spaces are needed",
            quote(chosen)
        )));
    }
    if source.is_empty() {
        return Err(Error::call(format!("{} names no model: NAME=MODEL is needed", quote(model))));
    }
    Ok(NamedModel { name: chosen.to_owned(), source })
}

/// The name and the model of `NAME=MODEL`. Paths and addresses may have a `=`, too.
fn split(model: &str) -> (Option<&str>, &str) {
    match model.split_once('=') {
        Some((name, source)) if !name.contains("://") && !Path::new(model).exists() => (Some(name), source),
        _ => (None, model),
    }
}

/// The name of a model without another one: its alias or id as it is typed; of a path the last part, without
/// the ending of a file.
fn usual_name(model: &str) -> String {
    let path = Path::new(model);
    if !path.exists() {
        return model.to_owned();
    }
    let last = path.file_name().map_or(model.into(), |last| last.to_string_lossy());
    let stem = [".gguf", ".safetensors", ".q4nx"].iter().find_map(|ending| last.strip_suffix(ending));
    stem.unwrap_or(&last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The models as `NAME<SOURCE`, or the error.
    fn shown(models: &[&str], names: &[&str]) -> String {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let models = owned(models);
        match named(&models, &owned(names)) {
            Ok(named) => {
                let shown = named.iter().map(|NamedModel { name, source }| format!("{name}<{source}"));
                shown.collect::<Vec<_>>().join(" ")
            }
            Err(Error::Call(sentence)) => sentence,
            Err(error) => panic!("{error:?}"),
        }
    }

    #[test]
    fn models_have_the_names_that_they_are_given() {
        assert_eq!(shown(&["org/name", "mine"], &[]), "org/name<org/name mine<mine");
        assert_eq!(shown(&["gpt-4o=org/name", "b=./x=y"], &[]), "gpt-4o<org/name b<./x=y");
        assert_eq!(shown(&["org/name", "mine"], &["a/b:c", "d"]), "a/b:c<org/name d<mine");
        assert_eq!(shown(&["https://hub/a?b=c"], &[]), "https://hub/a?b=c<https://hub/a?b=c");
        assert_eq!(shown(&["a=https://hub/a?b=c"], &[]), "a<https://hub/a?b=c");
        assert_eq!(shown(&["src", "a=src"], &[]), "src<src a<src");
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        for (models, names, words) in [
            (
                &["m", "m"][..],
                &[][..],
                "two models are named 'm': remove one, or give it another name as NAME=MODEL",
            ),
            (&["a=m", "a=n"], &[], "two models are named 'a'"),
            (&["m", "n"], &["a"], "--served-name is given 1 times for 2 models"),
            (&["a=m"], &["b"], "a model is named 'a' and, by --served-name, 'b': give one name"),
            (&["=m"], &[], "'' is no name of a served model"),
            (&["m"], &["a b"], "'a b' is no name of a served model"),
            (&["a="], &[], "'a=' names no model"),
        ] {
            let refused = shown(models, names);
            assert!(refused.starts_with(words), "{refused}");
        }
    }
}
