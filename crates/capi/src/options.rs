//! The options with which a model is opened and run, from JSON. A key that is absent has the library's default.

use std::collections::BTreeMap;
use std::path::PathBuf;

use girih::{AdapterSource, BackendChoice, DType, Drafts, OpenOptions, ReplyStyle, RunOptions};
use serde::Deserialize;

use crate::environment;
use crate::json::unique_map;
use crate::status::{Fault, Result};

/// The keys of the options, which are those of [`OpenOptions`] and [`RunOptions`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptionFields {
    /// Whether the cache folder and the Hugging Face cache come of the environment, as in the program `girih`.
    environment: bool,
    cache: Option<PathBuf>,
    chat_template: Option<String>,
    reply_style: Option<String>,
    adapters: Vec<AdapterFields>,
    allow_key: Vec<String>,
    architectures: Vec<String>,
    backend: Option<String>,
    #[serde(deserialize_with = "unique_map")]
    backend_options: BTreeMap<String, String>,
    threads: Option<usize>,
    kv: Option<String>,
    context: Option<u32>,
    chunk: Option<u32>,
    sequences: Option<u32>,
    waiting: Option<u32>,
    output_rows: Option<u32>,
    drafts: Option<DraftFields>,
    draft_max: Option<u32>,
    unread_events: Option<u32>,
}

/// An adapter beside the model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterFields {
    name: String,
    path: PathBuf,
}

/// What drafts tokens.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DraftFields {
    Off,
    PromptLookup,
    Mtp,
}

impl OptionFields {
    /// How the model is opened.
    ///
    /// # Errors
    /// When a style of replies is unknown, or a description of an architecture is malformed.
    pub fn open_options(&self) -> Result<OpenOptions> {
        let from = if self.environment { environment::open_options() } else { OpenOptions::default() };
        let adapter = |it: &AdapterFields| AdapterSource { name: it.name.clone(), path: it.path.clone() };
        let options = OpenOptions {
            cache: self.cache.clone().or(from.cache.clone()),
            chat_template: self.chat_template.clone(),
            reply_style: self.reply_style.as_deref().map(ReplyStyle::named).transpose()?,
            adapters: self.adapters.iter().map(adapter).collect(),
            allow_key: self.allow_key.clone(),
            ..from
        };
        let add = |options: OpenOptions, text: &String| options.architecture(text);
        Ok(self.architectures.iter().try_fold(options, add)?)
    }

    /// How the model is run.
    ///
    /// # Errors
    /// When there is no such backend, option or type, or a number is 0 that must not be.
    pub fn run_options(&self) -> Result<RunOptions> {
        let default = RunOptions::default();
        for (key, value) in [("chunk", self.chunk), ("sequences", self.sequences), ("context", self.context)]
        {
            if value == Some(0) {
                return Err(Fault::argument(format!("the options: {key} is 0; it must be at least 1")));
            }
        }
        Ok(RunOptions {
            backend: self.backend(default.backend)?,
            kv: self.kv.as_deref().map(kv_type).transpose()?,
            context: self.context,
            chunk: self.chunk.unwrap_or(default.chunk),
            sequences: self.sequences.unwrap_or(default.sequences),
            waiting: self.waiting.unwrap_or(default.waiting),
            output_rows: self.output_rows.unwrap_or(default.output_rows),
            drafts: match self.drafts.unwrap_or(DraftFields::Off) {
                DraftFields::Off => Drafts::Off,
                DraftFields::PromptLookup => Drafts::PromptLookup,
                DraftFields::Mtp => Drafts::Mtp,
            },
            draft_max: self.draft_max.unwrap_or(default.draft_max),
            unread_events: self.unread_events.unwrap_or(default.unread_events),
            ..default
        })
    }

    fn backend(&self, default: BackendChoice) -> Result<BackendChoice> {
        if self.threads == Some(0) {
            return Err(Fault::argument("the options: threads is 0; it must be at least 1, or absent"));
        }
        let choice = self.backend.as_deref().map_or(Ok(default), girih::backend)?;
        let set = |choice: BackendChoice, (name, value): (&String, &String)| choice.with(name, value);
        let choice = self.backend_options.iter().try_fold(choice, set)?;
        Ok(choice.with_threads(self.threads))
    }
}

/// The type of a KV cache by its name, as `girih run --kv` has it.
fn kv_type(name: &str) -> Result<DType> {
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    let found = types.into_iter().find(|dtype| dtype.name() == name);
    let names = types.map(DType::name).join(", ");
    let name = girih::tools::quote(name);
    found.ok_or_else(|| Fault::argument(format!("the options: kv is {name}; it must be one of {names}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::read;
    use crate::status::Status;

    #[test]
    fn options_are_those_of_the_library() {
        let text = r#"{"backend": "cpu", "backend_options": {"act-precision": "f32"}, "threads": 2, "kv": "f32",
            "context": 64, "sequences": 2, "drafts": "prompt-lookup", "allow_key": ["a"]}"#;
        let fields: OptionFields = read("the options", Some(text)).unwrap();
        let options = fields.run_options().unwrap();
        assert_eq!((options.kv, options.context, options.sequences), (Some(DType::F32), Some(64), 2));
        assert_eq!(options.backend.settings().threads, Some(2));
        assert_eq!(options.backend.settings().get("act-precision"), Some("f32"));
        assert!(matches!(options.drafts, Drafts::PromptLookup));
        let opened = fields.open_options().unwrap();
        assert_eq!((opened.cache, opened.allow_key), (None, vec!["a".to_owned()]));
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (text, named) in [
            (r#"{"kv": "q2_k"}"#, "q2_k"),
            (r#"{"threads": 0}"#, "threads"),
            (r#"{"context": 0}"#, "context"),
            (r#"{"backend": "abacus"}"#, "abacus"),
            (r#"{"backend_options": {"warp": "9"}}"#, "warp"),
            (r#"{"reply_style": "sonnet"}"#, "sonnet"),
            (r#"{"architectures": ["name = 1"]}"#, "architecture"),
        ] {
            let fields: OptionFields = read("the options", Some(text)).unwrap();
            let fault = fields.run_options().map(drop).and(fields.open_options().map(drop)).unwrap_err();
            assert!(fault.sentence.contains(named), "{fault:?}");
            assert_ne!(fault.status, Status::Ok);
        }
    }
}
