//! Finds a model's chat templates and selects one of several.

use std::path::Path;

use girih_file::{quote, read_companion, shorten};
use girih_tensor::{Error, Result};
use serde_json::{Map, Value};

use crate::limits::TextLimits;

/// The special tokens of `tokenizer_config.json` that templates see as
/// variables (transformers' `special_tokens_map`).
const TOKEN_VARIABLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The chat templates of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplate {
    /// Name and source.
    named: Vec<(String, String)>,
    /// `bos_token`, `eos_token` and so on, if the model defines them.
    pub variables: Map<String, Value>,
}

impl ChatTemplate {
    /// One template, such as `tokenizer.chat_template` of a GGUF file.
    pub fn new(source: impl Into<String>, variables: Map<String, Value>) -> ChatTemplate {
        ChatTemplate { named: vec![("default".to_owned(), source.into())], variables }
    }

    /// Reads the template of a Hugging Face folder: `chat_template.jinja`, else
    /// `chat_template` in `tokenizer_config.json`. `None` if both are missing.
    pub fn read(folder: &Path, limits: &TextLimits) -> Result<Option<ChatTemplate>> {
        let config = match read_text(folder, "tokenizer_config.json", limits.file.json_bytes)? {
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                Error::new(format!("is not JSON: {}", shorten(error))).of("tokenizer_config.json")
            })?,
            None => Value::Null,
        };
        let variables = token_variables(&config);
        if let Some(source) = read_text(folder, "chat_template.jinja", limits.template_bytes)? {
            return Ok(Some(ChatTemplate::new(source, variables)));
        }
        let Some(template) = config.get("chat_template").filter(|template| !template.is_null()) else {
            return Ok(None);
        };
        let named = named(template).map_err(|error| error.of("tokenizer_config.json"))?;
        for (name, source) in &named {
            check_size(
                "tokenizer_config.json",
                &format!("the chat template {}", quote(name)),
                source.len(),
                limits,
            )?;
        }
        Ok(Some(ChatTemplate { named, variables }))
    }

    /// Selects a template: `tool_use` if present and tools are given, else
    /// `default`.
    pub fn source(&self, tools: Option<&[Value]>) -> Result<&str> {
        let by_name = |wanted: &str| {
            self.named.iter().find(|(name, _)| name == wanted).map(|(_, source)| source.as_str())
        };
        tools.and_then(|_| by_name("tool_use")).or_else(|| by_name("default")).ok_or_else(|| {
            let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
            let names = shorten(names.join(", "));
            Error::new(format!("the model's chat templates are named {names}; none is 'default'"))
        })
    }
}

/// The `chat_template` of a configuration: a string, or a list of
/// `{"name": .., "template": ..}`.
fn named(template: &Value) -> Result<Vec<(String, String)>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let entries = match template {
        Value::String(source) => return Ok(vec![("default".to_owned(), source.clone())]),
        Value::Array(entries) => {
            entries.iter().map(|entry| text(entry.get("name")).zip(text(entry.get("template"))))
        }
        _ => return Err(Error::new("chat_template must be a string or a list")),
    };
    entries.collect::<Option<_>>().ok_or_else(|| {
        Error::new(
            "chat_template is a list with an entry that is not {\"name\": string, \"template\": string}",
        )
    })
}

/// The token variables, written as strings or as added tokens.
fn token_variables(config: &Value) -> Map<String, Value> {
    let spelling = |name: &str| {
        let value = config.get(name)?;
        Some(value.get("content").unwrap_or(value).as_str()?.to_owned())
    };
    TOKEN_VARIABLES
        .iter()
        .filter_map(|&name| Some((name.to_owned(), Value::String(spelling(name)?))))
        .collect()
}

/// Reads a text file of at most `max_bytes` in the model's folder; `None` if it does not exist.
fn read_text(folder: &Path, name: &str, max_bytes: u64) -> Result<Option<String>> {
    let text = read_companion(folder, name, max_bytes)?.map(String::from_utf8).transpose();
    text.map_err(|error| Error::new(format!("cannot be read as text: {error}")).of(name))
}

fn check_size(file: &str, thing: &str, bytes: usize, limits: &TextLimits) -> Result<()> {
    if bytes as u64 > limits.template_bytes {
        let max = limits.template_bytes;
        return Err(Error::new(format!("{thing} has {bytes} bytes, the maximum is {max}")).of(file));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A temporary folder with files, removed when dropped.
    struct TempFolder(tempfile::TempDir);

    impl TempFolder {
        fn new(files: &[(&str, &str)]) -> TempFolder {
            let folder = tempfile::tempdir().expect("a writable folder for temporary files");
            for (file, text) in files {
                std::fs::write(folder.path().join(file), text).expect("a writable file");
            }
            TempFolder(folder)
        }

        fn read(&self) -> Result<Option<ChatTemplate>> {
            ChatTemplate::read(self.0.path(), &TextLimits { template_bytes: 8, ..TextLimits::DEFAULT })
        }
    }

    fn config(template: &Value) -> String {
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null, "chat_template": template})
            .to_string()
    }

    #[test]
    fn the_template_file_has_precedence_over_the_configuration() {
        let config = config(&json!("config"));
        let folder = TempFolder::new(&[("tokenizer_config.json", &config), ("chat_template.jinja", "file")]);
        let template = folder.read().expect("good files").expect("a template");
        assert_eq!(template.source(None).expect("one template"), "file");
        assert_eq!(Value::Object(template.variables), json!({"bos_token": "<s>", "eos_token": "</s>"}));
    }

    #[test]
    fn tools_select_among_named_templates() {
        let named =
            json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
        let folder = TempFolder::new(&[("tokenizer_config.json", &config(&named))]);
        let template = folder.read().expect("a good file").expect("a template");
        assert_eq!(template.source(None).expect("default"), "plain");
        assert_eq!(template.source(Some(&[])).expect("tool_use"), "tools");

        let named = json!([{"name": "rag", "template": "x"}]);
        let folder = TempFolder::new(&[("tokenizer_config.json", &config(&named))]);
        let template = folder.read().expect("a good file").expect("a template");
        let error = template.source(None).expect_err("no default").to_string();
        assert_eq!(error, "the model's chat templates are named rag; none is 'default'");
    }

    #[test]
    fn bad_files_are_refused() {
        let error =
            |file: &str, text: &str| TempFolder::new(&[(file, text)]).read().expect_err("bad").to_string();
        let config_error = |text: &str| error("tokenizer_config.json", text);
        assert!(config_error("{").starts_with("tokenizer_config.json: is not JSON: "));
        assert_eq!(
            config_error(&config(&json!(1))),
            "tokenizer_config.json: chat_template must be a string or a list"
        );
        assert!(config_error(&config(&json!([{"name": "a"}]))).contains("an entry that is not"));
        assert_eq!(
            config_error(&config(&json!("123456789"))),
            "tokenizer_config.json: the chat template 'default' has 9 bytes, the maximum is 8"
        );
        let long = error("chat_template.jinja", "123456789");
        assert!(long.ends_with("/chat_template.jinja: has 9 bytes; the cap is 8"), "{long}");
        assert_eq!(TempFolder::new(&[]).read().expect("an empty folder"), None);
    }

    /// The text of a template reaches the prompt, so it must not come from elsewhere.
    #[test]
    fn a_template_that_links_out_of_the_folder_is_refused_by_name() {
        let folder = TempFolder::new(&[]);
        std::os::unix::fs::symlink("/etc/passwd", folder.0.path().join("chat_template.jinja"))
            .expect("a new link");
        let error = folder.read().expect_err("a link").to_string();
        assert!(error.contains("/chat_template.jinja: is a link that leaves the model's folder"), "{error}");
    }

    #[test]
    fn a_template_that_is_a_pipe_is_refused_without_waiting() {
        let folder = TempFolder::new(&[]);
        let path = folder.0.path().join("chat_template.jinja");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .expect("a new pipe");
        let error = folder.read().expect_err("a pipe").to_string();
        assert!(error.contains("/chat_template.jinja: is a pipe, a device or a folder"), "{error}");
    }
}
