//! Where a model's chat template stands, and which of several is meant.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Limits, Result};

/// The special tokens of `tokenizer_config.json` that templates see as
/// variables (transformers' `special_tokens_map`).
const TOKEN_VARIABLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The chat templates of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplate {
    /// Name and source.
    named: Vec<(String, String)>,
    /// `bos_token`, `eos_token` and so on, as far as the model names them.
    pub variables: Map<String, Value>,
}

impl ChatTemplate {
    /// One template, from wherever (`tokenizer.chat_template` of a GGUF file).
    pub fn new(source: impl Into<String>, variables: Map<String, Value>) -> ChatTemplate {
        ChatTemplate { named: vec![("default".to_owned(), source.into())], variables }
    }

    /// The template of a Hugging Face folder: `chat_template.jinja`, else
    /// `chat_template` in `tokenizer_config.json`. `None` if it has neither.
    pub fn read(folder: &Path, limits: &Limits) -> Result<Option<ChatTemplate>> {
        let config = match read_text(&folder.join("tokenizer_config.json"), limits.json_bytes)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Error::new(format!("is not JSON: {error}")).of("tokenizer_config.json"))?,
            None => Value::Null,
        };
        let variables = token_variables(&config);
        if let Some(source) = read_text(&folder.join("chat_template.jinja"), limits.template_bytes)? {
            return Ok(Some(ChatTemplate::new(source, variables)));
        }
        let Some(template) = config.get("chat_template").filter(|template| !template.is_null()) else {
            return Ok(None);
        };
        let named = named(template).map_err(|error| error.of("tokenizer_config.json"))?;
        for (name, source) in &named {
            check_size("tokenizer_config.json", &format!("the chat template '{name}'"), source.len(), limits)?;
        }
        Ok(Some(ChatTemplate { named, variables }))
    }

    /// The source to render with: `tool_use` if the model has one and tools are
    /// given, else `default`.
    pub fn source(&self, tools: Option<&[Value]>) -> Result<&str> {
        let by_name = |wanted: &str| self.named.iter().find(|(name, _)| name == wanted).map(|(_, source)| source.as_str());
        tools.and_then(|_| by_name("tool_use")).or_else(|| by_name("default")).ok_or_else(|| {
            let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
            Error::new(format!("the model's chat templates are named {}; none is 'default'", names.join(", ")))
        })
    }
}

/// The `chat_template` of a configuration: a string, or a list of
/// `{"name": .., "template": ..}`.
fn named(template: &Value) -> Result<Vec<(String, String)>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let entries = match template {
        Value::String(source) => return Ok(vec![("default".to_owned(), source.clone())]),
        Value::Array(entries) => entries.iter().map(|entry| text(entry.get("name")).zip(text(entry.get("template")))),
        _ => return Err(Error::new("chat_template must be a string or a list")),
    };
    entries.collect::<Option<_>>().ok_or_else(|| {
        Error::new("chat_template is a list with an entry that is not {\"name\": string, \"template\": string}")
    })
}

/// The token variables, whether written as strings or as added tokens.
fn token_variables(config: &Value) -> Map<String, Value> {
    let spelling = |name: &str| {
        let value = config.get(name)?;
        Some(value.get("content").unwrap_or(value).as_str()?.to_owned())
    };
    TOKEN_VARIABLES.iter().filter_map(|&name| Some((name.to_owned(), Value::String(spelling(name)?)))).collect()
}

/// A small text file, if it is there.
fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::new(format!("cannot be opened: {error}")).of(name)),
    };
    let mut text = String::new();
    file.take(bytes_max + 1)
        .read_to_string(&mut text)
        .map_err(|error| Error::new(format!("cannot be read as text: {error}")).of(&name))?;
    if text.len() as u64 > bytes_max {
        return Err(Error::new(format!("has more than {bytes_max} bytes, the most for such a file")).of(name));
    }
    Ok(Some(text))
}

fn check_size(file: &str, thing: &str, bytes: usize, limits: &Limits) -> Result<()> {
    if bytes as u64 > limits.template_bytes {
        let most = limits.template_bytes;
        return Err(Error::new(format!("{thing} has {bytes} bytes, the most is {most}")).of(file));
    }
    Ok(())
}
