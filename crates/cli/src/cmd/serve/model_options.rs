//! Options of single models: a file with a table for each, whose keys are options of `girih serve`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use girih_file::{fault_in_line, nearest, quote};
use toml::de::{DeTable, DeValue};

use crate::backend_args;
use crate::config_file::single_value;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};

/// The options that a model may have of its own, beside those of backends.
const KEYS: [&str; 20] = [
    "adapter",
    "allow-key",
    "arch",
    "backend",
    "chat-template",
    "chunk",
    "context",
    "draft",
    "draft-max",
    "kv",
    "max-wait",
    "pack",
    "parallel",
    "prompt-cache",
    "prompt-cache-limit",
    "reply-style",
    "sequences",
    "step-time",
    "threads",
    "unload-idle",
];

/// The options of models, by name, as words of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    path: String,
    words: BTreeMap<String, Vec<String>>,
}

impl ModelOptions {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has a key that is no option of a model.
    pub fn read(path: &Path) -> Result<ModelOptions> {
        ModelOptions::parse(path.display().to_string(), &text_file(path, DESCRIPTION_BYTES)?)
    }

    fn parse(path: String, text: &str) -> Result<ModelOptions> {
        let table = DeTable::parse(text).map_err(|error| {
            let fault = fault_in_line(text, error.span().map(|span| span.start), error.message());
            Error::call(format!("{path}: is not valid TOML: {fault}"))
        })?;
        let mut words = BTreeMap::new();
        for (name, options) in table.get_ref() {
            let DeValue::Table(options) = options.get_ref() else {
                let place = place(&path, text, name.span().start);
                let name = quote(name.get_ref());
                return Err(Error::call(format!(
                    "{place}: {name} stands before the first [MODEL]: options belong to the table of a model"
                )));
            };
            let mut of_model = Vec::new();
            for (key, value) in options {
                let place = place(&path, text, key.span().start);
                check_key(&place, key.get_ref())?;
                let values = match value.get_ref() {
                    DeValue::Array(values) => {
                        values.iter().map(|value| single_value(value.get_ref())).collect()
                    }
                    value => vec![single_value(value)],
                };
                for value in values {
                    let Some(value) = value else {
                        let key = quote(key.get_ref());
                        return Err(Error::call(format!(
                            "{place}: {key} is a table or a date; a single value is needed"
                        )));
                    };
                    of_model.push(format!("--{}={value}", key.get_ref()));
                }
            }
            words.insert(name.get_ref().to_string(), of_model);
        }
        Ok(ModelOptions { path, words })
    }

    /// The options of a model, as words of the command line.
    pub fn words(&self, model: &str) -> Vec<OsString> {
        self.words.get(model).into_iter().flatten().map(OsString::from).collect()
    }

    /// Whether a model has this option.
    pub fn has(&self, model: &str, key: &str) -> bool {
        let start = format!("--{key}=");
        self.words.get(model).into_iter().flatten().any(|word| word.starts_with(&start))
    }

    /// The words of a model as one text, which differs when they do.
    pub fn version(&self, model: &str) -> String {
        let words = self.words.get(model).into_iter().flatten();
        words.fold(String::new(), |mut text, word| {
            let _ = write!(text, " {word}");
            text
        })
    }

    /// The models that have options.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.words.keys().map(String::as_str)
    }

    /// An error of a model's options, with their place.
    pub fn place(&self, model: &str, error: &Error) -> Error {
        Error::call(format!("{}: {}: {}", self.path, quote(model), error.sentence()))
    }
}

/// `PATH:LINE`.
fn place(path: &str, text: &str, start: usize) -> String {
    format!("{path}:{}", 1 + text[..start].matches('\n').count())
}

/// Refuses a key that is no option of a model.
fn check_key(place: &str, key: &str) -> Result<()> {
    let of_backends: Vec<&str> = backend_args::options().into_iter().map(|(spec, _)| spec.name).collect();
    let mut known = KEYS.iter().copied().chain(of_backends);
    if known.clone().any(|name| name == key) {
        return Ok(());
    }
    let advice = match nearest(key, known.clone()) {
        Some(name) => format!("is {} meant?", quote(name)),
        None => format!("known are {}", known.by_ref().collect::<Vec<_>>().join(", ")),
    };
    Err(Error::call(format!("{place}: {} is no option of a single model; {advice}", quote(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match ModelOptions::parse("a.toml".to_owned(), text) {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tables_are_words_of_the_command_line() {
        let text = "[tom]\ncontext = 0x100\nkv = \"q8_0\"\nallow-key = [\"a\", \"b\"]\n[\"org/lily\"]\n";
        let options = ModelOptions::parse("a.toml".to_owned(), text).expect("it is valid");
        let words = ["--context=256", "--kv=q8_0", "--allow-key=a", "--allow-key=b"];
        let mut found = options.words("tom");
        found.sort_unstable();
        let mut words = words.map(OsString::from);
        words.sort_unstable();
        assert_eq!(found, words);
        assert!(options.words("org/lily").is_empty() && options.words("other").is_empty());
        assert_eq!(options.models().collect::<Vec<_>>(), ["org/lily", "tom"]);
        assert_ne!(options.version("tom"), options.version("org/lily"));
    }

    #[test]
    fn what_is_no_option_of_a_model_is_refused() {
        assert_eq!(
            refusal("[tom]\n\ncontxt = 5\n"),
            "a.toml:3: 'contxt' is no option of a single model; is 'context' meant?"
        );
        assert!(
            refusal("[tom]\nport = 80\n").starts_with("a.toml:2: 'port' is no option of a single model; ")
        );
        assert!(refusal("context = 5\n").starts_with("a.toml:1: 'context' stands before the first [MODEL]"));
        assert!(refusal("[tom]\nkv = {}\n").contains("'kv' is a table or a date"));
        assert!(refusal("[tom\n").starts_with("a.toml: is not valid TOML: "));
    }
}
