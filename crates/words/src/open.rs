//! Everything that a model says about text, found together: its tokenizer,
//! its special tokens, its chat template.

use std::path::Path;

use girih_file::{Container, ContainerKind, Metadata};
use girih_tensor::Result;
use serde_json::{Map, Value};

use super::gguf_vocab::GgufVocab;
use super::template::{ChatTemplate, SpecialTokens};
use super::tokenizer::Tokenizer;
use crate::limits::Limits;

/// A model's words.
#[derive(Debug)]
pub struct Words {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How conversations become text, where the model says so.
    pub template: Option<ChatTemplate>,
    /// The spellings that are special tokens, for marking a user's text.
    pub special: SpecialTokens,
}

impl Words {
    /// The words of the model at `path`: a folder with a `tokenizer.json`, or a
    /// GGUF. A folder need not hold weights, nor a GGUF tensors.
    ///
    /// # Errors
    /// When the files are not well formed, or there is no tokenizer.
    pub fn open(path: &Path, limits: &Limits) -> Result<Words> {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        if !is_gguf && folder.join("tokenizer.json").exists() {
            let tokenizer = Tokenizer::from_folder(folder, limits)?;
            return Ok(Words::new(tokenizer, ChatTemplate::read(folder, limits)?));
        }
        let container = Container::open(path, &limits.file)?;
        match container.kind() {
            ContainerKind::Gguf => Words::of_gguf(container.metadata(), limits),
            ContainerKind::Safetensors => Ok(Words::new(Tokenizer::from_folder(folder, limits)?, None)),
        }
    }

    /// The words in a GGUF header.
    ///
    /// # Errors
    /// When there is no vocabulary, or one that is not supported.
    pub fn of_gguf(metadata: &Metadata, limits: &Limits) -> Result<Words> {
        let tokenizer = GgufVocab::of(metadata)?.tokenizer(limits)?;
        let template = metadata.get::<&str>("tokenizer.chat_template")?;
        let template = template.map(|source| ChatTemplate::new(source, token_variables(&tokenizer)));
        Ok(Words::new(tokenizer, template))
    }

    /// The words of a tokenizer and a template.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Words {
        let ids = (0..tokenizer.vocab_size()).filter(|&id| tokenizer.is_special(id));
        let spellings: Vec<String> = ids.filter_map(|id| tokenizer.token(id)).map(str::to_owned).collect();
        Words { special: SpecialTokens::new(&spellings), tokenizer, template }
    }
}

/// The named tokens, as templates see them.
fn token_variables(tokenizer: &Tokenizer) -> Map<String, Value> {
    let named = tokenizer.named();
    let ids = [
        ("bos_token", named.bos),
        ("eos_token", named.eos),
        ("unk_token", named.unk),
        ("pad_token", named.pad),
    ];
    let spelled = ids.into_iter().filter_map(|(name, id)| Some((name, tokenizer.token(id?)?)));
    spelled.map(|(name, token)| (name.to_owned(), Value::from(token))).collect()
}
