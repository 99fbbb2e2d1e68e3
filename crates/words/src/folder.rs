//! Reads a tokenizer from a model's folder: `tokenizer.json` and the additions of
//! `tokenizer_config.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use girih_file::{read_companion, read_required, shorten_parse};
use girih_tensor::{Error, Result};
use serde::Deserialize;

use super::added::AddedToken;
use super::parts::{TokenizerModelParts, TokenizerParts};
use super::short::short;
use super::tokenizer::Tokenizer;
use super::tokenizer_json;
use crate::limits::TextLimits;

/// The name of a folder's tokenizer file.
pub(super) const TOKENIZER_FILE: &str = "tokenizer.json";

/// The name of the file with its additions.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The fields of `tokenizer_config.json` that affect ids. The chat template is
/// read elsewhere; settings of Python classes have no effect.
///
/// `clean_up_tokenization_spaces` is not applied: it removes spaces from decoded
/// English (`"do n't"`), so decoding would not restore the encoded text, and
/// streamed text would differ from whole text. The `cleanup` of a WordPiece decoder
/// is applied, because it changes each token alone.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    bos_token: Option<Spelling>,
    eos_token: Option<Spelling>,
    unk_token: Option<Spelling>,
    pad_token: Option<Spelling>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<u32, AddedByConfig>,
}

/// A token: its text, or an object that contains the text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Spelling {
    Plain(String),
    Object { content: String },
}

impl Spelling {
    fn text(&self) -> &str {
        match self {
            Spelling::Plain(text) | Spelling::Object { content: text } => text,
        }
    }
}

#[derive(Debug, Deserialize)]
struct AddedByConfig {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is malformed, exceeds a limit, or needs a component that is
    /// not supported.
    pub fn from_json(bytes: &[u8], limits: &TextLimits) -> Result<Tokenizer> {
        Tokenizer::assemble(tokenizer_json::parse(bytes, limits)?, limits)
    }

    /// Reads the tokenizer of a folder: `tokenizer.json` and, if present,
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_json`], with the path of the file.
    pub fn from_folder(folder: &Path, limits: &TextLimits) -> Result<Tokenizer> {
        let path = folder.join(TOKENIZER_FILE);
        let bytes = read_required(folder, TOKENIZER_FILE, limits.tokenizer_bytes)?;
        let parts = parts(folder, &bytes, limits)?;
        drop(bytes);
        Tokenizer::assemble(parts, limits).map_err(|error| error.of(path.display()))
    }

    /// As [`Tokenizer::from_folder`], from the bytes of the two files.
    pub(crate) fn from_bytes(tokenizer: &[u8], config: &[u8], limits: &TextLimits) -> Result<Tokenizer> {
        let mut parts = tokenizer_json::parse(tokenizer, limits)?;
        TokenizerConfig::parse(config)?.apply(&mut parts)?;
        Tokenizer::assemble(parts, limits)
    }
}

/// The parts of the tokenizer in a folder; `bytes` is its `tokenizer.json`.
pub(super) fn parts(folder: &Path, bytes: &[u8], limits: &TextLimits) -> Result<TokenizerParts> {
    let path = folder.join(TOKENIZER_FILE);
    let mut parts = tokenizer_json::parse(bytes, limits).map_err(|error| error.of(path.display()))?;
    if let Some(bytes) = read_companion(folder, CONFIG_FILE, limits.file.json_bytes)? {
        let config = TokenizerConfig::parse(&bytes).and_then(|config| config.apply(&mut parts));
        config.map_err(|error| error.of(folder.join(CONFIG_FILE).display()))?;
    }
    Ok(parts)
}

impl TokenizerConfig {
    fn parse(bytes: &[u8]) -> Result<TokenizerConfig> {
        serde_json::from_slice(bytes).map_err(|error| {
            Error::new(format!("not a valid tokenizer_config.json: {}", shorten_parse(&error)))
        })
    }

    fn apply(self, parts: &mut TokenizerParts) -> Result<()> {
        self.add_tokens(parts)?;
        let required = |name: &str, spelling: &Option<Spelling>| match spelling {
            None => Ok(None),
            Some(spelling) => id_of(parts, spelling.text()).map(Some).ok_or_else(|| {
                Error::new(format!("{name} `{}` is not in tokenizer.json", short(spelling.text())))
            }),
        };
        let (bos, eos) = (required("bos_token", &self.bos_token)?, required("eos_token", &self.eos_token)?);
        // Padding and unknown tokens outside the vocabulary never occur, so they are ignored;
        // transformers adds them.
        let known = |spelling: &Option<Spelling>| spelling.as_ref().and_then(|it| id_of(parts, it.text()));
        let (unk, pad) = (known(&self.unk_token).or(parts.named.unk), known(&self.pad_token));
        parts.named.bos = bos;
        parts.named.eos = eos;
        parts.named.unk = unk;
        parts.named.pad = pad;
        switch(&mut parts.bos_eos.before, self.add_bos_token, bos, "add_bos_token", SequenceSide::Before)?;
        switch(&mut parts.bos_eos.after, self.add_eos_token, eos, "add_eos_token", SequenceSide::After)
    }

    /// Adds the tokens that only the config contains, as transformers does.
    fn add_tokens(&self, parts: &mut TokenizerParts) -> Result<()> {
        let known: HashMap<u32, String> =
            parts.added.iter().map(|token| (token.id, token.content.clone())).collect();
        for (id, token) in &self.added_tokens_decoder {
            match known.get(id) {
                Some(content) if *content == token.content => {}
                Some(content) => {
                    return Err(Error::new(format!(
                        "added_tokens_decoder gives id {id} to `{}`, tokenizer.json to `{}`",
                        short(&token.content),
                        short(content)
                    )));
                }
                None => parts.added.push(AddedToken {
                    id: *id,
                    content: token.content.clone(),
                    single_word: token.single_word,
                    lstrip: token.lstrip,
                    rstrip: token.rstrip,
                    normalized: token.normalized,
                    special: token.special,
                }),
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum SequenceSide {
    Before,
    After,
}

/// Applies `add_bos_token` or `add_eos_token`, if set, to the ids on one side of
/// a sequence.
fn switch(
    ids: &mut Vec<u32>,
    setting: Option<bool>,
    id: Option<u32>,
    name: &str,
    side: SequenceSide,
) -> Result<()> {
    match (setting, id) {
        (Some(true), None) => {
            let token = name.trim_start_matches("add_");
            Err(Error::new(format!("{name} is true, but {token} is missing")))
        }
        (Some(true), Some(id)) if !ids.contains(&id) => {
            ids.insert(if side == SequenceSide::Before { 0 } else { ids.len() }, id);
            Ok(())
        }
        (Some(false), Some(id)) => {
            ids.retain(|other| *other != id);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn id_of(parts: &TokenizerParts, text: &str) -> Option<u32> {
    let added = parts.added.iter().find(|token| token.content == text).map(|token| token.id);
    added.or_else(|| match &parts.model {
        TokenizerModelParts::Bpe(bpe) => bpe.vocabulary.id(text),
        TokenizerModelParts::Unigram(parts) => parts.vocabulary.id(text),
        TokenizerModelParts::WordPiece(parts) => parts.vocabulary.id(text),
        TokenizerModelParts::Spm(..) => None,
    })
}
