//! Converts the tokenizer of a folder to the vocabulary of a GGUF file.
//!
//! GGUF stores the name of a tokenizer's rules, not the rules. Only rules with a
//! name can be written: byte-level BPE with a pre-tokenizer of the table in `named_rules.rs`, BPE with
//! byte fallback, which becomes SentencePiece's BPE with scores, and BERT's
//! WordPiece. Other tokenizers are refused.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use girih_file::{Strings, read_required, shorten_parse};
use girih_tensor::{Error, Result};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::bpe::BpeParts;
use super::decoding::byte_token;
use super::folder::{self, TOKENIZER_FILE};
use super::gguf_vocab::{GgufVocab, TokenType};
use super::named_rules::{self, NamedStep};
use super::normalize::NormalizationForm;
use super::parts::{TokenizerModelParts, TokenizerParts};
use super::short::short;
use super::split::GPT2;
use super::table::Vocabulary;
use super::tokenizer_json;
use super::wordpiece::{CONTINUATION_PREFIX, MAX_WORD_CHARS, WordPieceParts, to_gguf};
use crate::limits::TextLimits;

/// A kind of tokenizer that GGUF can express.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GgufFamily {
    /// `llama`: SentencePiece's BPE. With `prefix`, a space is prepended to a text.
    Spm { prefix: bool },
    /// `gpt2`: byte-level BPE with the pre-tokenizer named `pre`.
    ByteLevel { pre: &'static str },
}

/// The stages before the model, as in `tokenizer.json`.
#[derive(Deserialize)]
struct Stages {
    normalizer: Option<Json>,
    pre_tokenizer: Option<Json>,
}

impl GgufVocab<'static> {
    /// Converts the tokenizer in `folder` for a model whose embedding table has
    /// `rows` rows. Also returns warnings about what GGUF cannot express.
    ///
    /// Ids without a token become unused tokens. Added tokens without a row in the
    /// table are left out.
    ///
    /// # Errors
    /// When the tokenizer cannot be read, or GGUF has no name for its rules.
    pub fn from_folder(folder: &Path, rows: usize, limits: &TextLimits) -> Result<(Self, Vec<String>)> {
        let path = folder.join(TOKENIZER_FILE);
        let of_file = |error: Error| error.of(path.display());
        let bytes = read_required(folder, TOKENIZER_FILE, limits.tokenizer_bytes)?;
        let parts = folder::parts(folder, &bytes, limits)?;
        checked_export(parts, &bytes, rows, limits).map_err(of_file)
    }

    /// As [`GgufVocab::from_folder`], from the bytes of a `tokenizer.json` alone.
    ///
    /// # Errors
    /// As [`GgufVocab::from_folder`].
    pub fn from_json(json: &[u8], rows: usize, limits: &TextLimits) -> Result<(Self, Vec<String>)> {
        checked_export(tokenizer_json::parse(json, limits)?, json, rows, limits)
    }
}

/// Converts the parts of a tokenizer, whose `tokenizer.json` is `json`.
fn checked_export(
    parts: TokenizerParts,
    json: &[u8],
    rows: usize,
    limits: &TextLimits,
) -> Result<(GgufVocab<'static>, Vec<String>)> {
    let stages: Stages = serde_json::from_slice(json)
        .map_err(|error| Error::new(format!("not a valid tokenizer.json: {}", shorten_parse(&error))))?;
    parts.table(limits)?;
    export(parts, &stages, rows)
}

fn export(parts: TokenizerParts, stages: &Stages, rows: usize) -> Result<(GgufVocab<'static>, Vec<String>)> {
    let mut warnings = Vec::new();
    let mut vocab = match &parts.model {
        TokenizerModelParts::Bpe(bpe) => bpe_vocab(&parts, bpe, stages, rows, &mut warnings)?,
        TokenizerModelParts::WordPiece(model) => wordpiece_vocab(&parts, model, stages, rows, &mut warnings)?,
        TokenizerModelParts::Spm(..) | TokenizerModelParts::Unigram(_) => {
            return Err(Error::new("the model has scores; only BPE and WordPiece can be written to GGUF"));
        }
    };
    let in_table = |id: Option<u32>| id.filter(|id| (*id as usize) < rows);
    vocab.unk = in_table(parts.named.unk);
    vocab.pad = in_table(parts.named.pad);
    Ok((vocab, warnings))
}

fn bpe_vocab(
    parts: &TokenizerParts,
    bpe: &BpeParts,
    stages: &Stages,
    rows: usize,
    warnings: &mut Vec<String>,
) -> Result<GgufVocab<'static>> {
    let family = family(bpe, stages)?;
    let spell = |token: &str| {
        let byte = bpe.byte_fallback && byte_token(token).is_some();
        (token.to_owned(), if byte { TokenType::Byte } else { TokenType::Normal })
    };
    let (tokens, mut types) = tokens(parts, &bpe.vocabulary, spell, rows, warnings)?;
    if let (GgufFamily::Spm { .. }, Some(unk)) = (family, parts.named.unk)
        && let Some(token_type) = types.get_mut(unk as usize)
    {
        *token_type = TokenType::Unknown;
    }
    let (bos, add_bos) = end(&parts.bos_eos.before, parts.named.bos, "before")?;
    let (eos, add_eos) = end(&parts.bos_eos.after, parts.named.eos, "after")?;
    let mut vocab = GgufVocab {
        tokens: Cow::Owned(tokens.iter().collect()),
        types: Some(types.into_iter().map(TokenType::number).collect()),
        bos,
        eos,
        add_bos: Some(add_bos),
        add_eos: Some(add_eos),
        ..GgufVocab::default()
    };
    match family {
        GgufFamily::ByteLevel { pre } => {
            vocab.model = "gpt2".to_owned();
            vocab.pre = Some(pre.to_owned());
            let joined = bpe.merges.iter().map(|(left, right)| format!("{left} {right}"));
            vocab.merges = Some(Cow::Owned(joined.collect()));
        }
        GgufFamily::Spm { prefix } => {
            vocab.model = "llama".to_owned();
            vocab.pre = Some("default".to_owned());
            vocab.scores = Some(scores(&vocab.tokens, bpe));
            vocab.add_space_prefix = Some(prefix);
            warnings.extend(loose_pairs(bpe));
        }
    }
    Ok(vocab)
}

fn wordpiece_vocab(
    parts: &TokenizerParts,
    model: &WordPieceParts,
    stages: &Stages,
    rows: usize,
    warnings: &mut Vec<String>,
) -> Result<GgufVocab<'static>> {
    if model.prefix != CONTINUATION_PREFIX || model.max_chars != MAX_WORD_CHARS {
        return Err(Error::new(format!(
            "GGUF needs continuing_subword_prefix `{CONTINUATION_PREFIX}` and max_input_chars_per_word \
             {MAX_WORD_CHARS}; the model has `{}` and {}",
            short(&model.prefix),
            model.max_chars
        )));
    }
    let normalizer = stages.normalizer.as_ref().filter(|it| {
        it["type"] == "BertNormalizer" && it["clean_text"] == true && it["handle_chinese_chars"] == true
    });
    let normalizer = normalizer.ok_or_else(|| no_name("normalizer", stages.normalizer.as_ref()))?;
    if stages.pre_tokenizer != Some(json!({ "type": "BertPreTokenizer" })) {
        return Err(no_name("pre_tokenizer", stages.pre_tokenizer.as_ref()));
    }
    let spell = |token: &str| (to_gguf(token), TokenType::Normal);
    let (tokens, types) = tokens(parts, &model.vocabulary, spell, rows, warnings)?;
    let (cls, add_bos) = end(&parts.bos_eos.before, None, "before")?;
    let (sep, add_sep) = end(&parts.bos_eos.after, None, "after")?;
    let lowercase = normalizer["lowercase"].as_bool();
    Ok(GgufVocab {
        model: "bert".to_owned(),
        pre: Some("default".to_owned()),
        tokens: Cow::Owned(tokens.iter().collect()),
        types: Some(types.into_iter().map(TokenType::number).collect()),
        // llama.cpp reads CLS from the key of BOS.
        bos: cls,
        eos: parts.named.eos,
        cls,
        sep,
        add_bos: Some(add_bos),
        add_sep: Some(add_sep),
        lowercase,
        strip_accents: normalizer["strip_accents"].as_bool().or(lowercase),
        ..GgufVocab::default()
    })
}

/// The family with the rules of a model and its stages.
fn family(bpe: &BpeParts, stages: &Stages) -> Result<GgufFamily> {
    let normalizers = sequence(stages.normalizer.as_ref(), "normalizers");
    let steps = sequence(stages.pre_tokenizer.as_ref(), "pretokenizers");
    if bpe.byte_fallback {
        return spm(bpe, &normalizers, &steps);
    }
    let named: Option<Vec<NamedStep>> =
        steps.iter().map(|step| named_step(step)).collect::<Option<Vec<_>>>().map(|steps| steps.concat());
    let named = named.ok_or_else(|| no_name("pre_tokenizer", stages.pre_tokenizer.as_ref()))?;
    let form = form(&normalizers).ok_or_else(|| no_name("normalizer", stages.normalizer.as_ref()))?;
    let rows: Vec<_> = named_rules::of_steps(&named, form).collect();
    let Some(first) = rows.first() else {
        let is_known = [None, Some(NormalizationForm::Nfc)]
            .into_iter()
            .any(|form| named_rules::of_steps(&named, form).next().is_some());
        return Err(if is_known {
            no_name("normalizer", stages.normalizer.as_ref())
        } else {
            no_name("pre_tokenizer", stages.pre_tokenizer.as_ref())
        });
    };
    let pre = first.names[0];
    let row = rows.iter().find(|row| row.ignore_merges == bpe.ignore_merges);
    let Some(row) = row else {
        let have = bpe.ignore_merges;
        return Err(Error::new(format!(
            "ignore_merges is {have}; GGUF's '{pre}', which has this pattern, needs {}",
            first.ignore_merges
        )));
    };
    let pre = row.names[0];
    Ok(GgufFamily::ByteLevel { pre })
}

/// Checks the stages of a BPE with byte fallback: they may only replace spaces by
/// the mark, and prepend a mark to the text.
fn spm(bpe: &BpeParts, normalizers: &[&Json], steps: &[&Json]) -> Result<GgufFamily> {
    let mark = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let prefix = match normalizers {
        [only] if **only == mark => false,
        [first, last] if **first == prepend && **last == mark => true,
        other => return Err(no_name("normalizer", other.first().copied())),
    };
    // The normalized text has no spaces, so a split at spaces has no effect.
    let idle = |step: &Json| step["type"] == "Split" && step["pattern"] == json!({ "String": " " });
    if let Some(step) = steps.iter().find(|step| !idle(step)) {
        return Err(no_name("pre_tokenizer", Some(step)));
    }
    if bpe.ignore_merges {
        return Err(Error::new("ignore_merges is true, which GGUF's 'llama' does not support"));
    }
    Ok(GgufFamily::Spm { prefix })
}

/// The items of a stage: those of a sequence, or the stage itself.
fn sequence<'a>(stage: Option<&'a Json>, key: &str) -> Vec<&'a Json> {
    match stage.and_then(|stage| stage.get(key)?.as_array()) {
        Some(items) => items.iter().collect(),
        None => stage.into_iter().collect(),
    }
}

/// The steps of the table for a step of `tokenizer.json`; `None` if there are none.
fn named_step(step: &Json) -> Option<Vec<NamedStep<'_>>> {
    let is_off = |key: &str| step.get(key).and_then(Json::as_bool) == Some(false);
    match step["type"].as_str()? {
        "ByteLevel" if is_off("add_prefix_space") => Some(match is_off("use_regex") {
            true => vec![NamedStep::Bytes],
            false => vec![NamedStep::Isolate(GPT2), NamedStep::Bytes],
        }),
        "Digits" => {
            Some(vec![NamedStep::Isolate(if is_off("individual_digits") { r"\p{N}+" } else { r"\p{N}" })])
        }
        "Punctuation" if step["behavior"] == "Contiguous" => Some(vec![NamedStep::Punctuation]),
        "Split" if step["behavior"] == "MergedWithNext" && is_off("invert") => {
            (step["pattern"]["Regex"] == named_rules::LINE_ENDS).then(|| vec![NamedStep::Lines])
        }
        "Split" if step["behavior"] == "Isolated" && is_off("invert") => {
            Some(vec![NamedStep::Isolate(step["pattern"].get("Regex")?.as_str()?)])
        }
        _ => None,
    }
}

/// The normalization form of the steps of a normalizer; `None` if they do anything else.
fn form(normalizers: &[&Json]) -> Option<Option<NormalizationForm>> {
    match normalizers {
        [] => Some(None),
        [one] if **one == json!({ "type": "NFC" }) => Some(Some(NormalizationForm::Nfc)),
        _ => None,
    }
}

fn no_name(stage: &str, value: Option<&Json>) -> Error {
    let value = value.map_or("null".to_owned(), Json::to_string);
    Error::new(format!(
        "{stage} is `{}`; GGUF needs one that llama.cpp names: keep the model in safetensors",
        short(&value)
    ))
}

/// All tokens by id, and their types. `spell` gives the spelling in GGUF and the
/// type of a token of the vocabulary.
fn tokens(
    parts: &TokenizerParts,
    vocabulary: &Vocabulary,
    spell: impl Fn(&str) -> (String, TokenType),
    rows: usize,
    warnings: &mut Vec<String>,
) -> Result<(Vec<String>, Vec<TokenType>)> {
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![TokenType::Unused; rows];
    for (token, id) in vocabulary.iter() {
        let slot = tokens.get_mut(id as usize).ok_or_else(|| {
            Error::new(format!(
                "token `{}` has id {id}, but the embedding table has {rows} rows",
                short(token)
            ))
        })?;
        (*slot, types[id as usize]) = spell(token);
    }
    for added in &parts.added {
        let Some(slot) = tokens.get_mut(added.id as usize) else {
            warnings.push(format!(
                "added token `{}` is left out: it has id {}, but the embedding table has {rows} rows",
                short(&added.content),
                added.id
            ));
            continue;
        };
        slot.clone_from(&added.content);
        types[added.id as usize] = if added.special { TokenType::Control } else { TokenType::UserDefined };
        if added.lstrip || added.rstrip || added.single_word {
            warnings.push(format!(
                "added token `{}` depends on the characters beside it, which GGUF cannot express; it will match everywhere",
                short(&added.content)
            ));
        }
    }
    Ok((tokens, types))
}

/// The id of BOS or EOS, and whether the tokenizer adds it to a text.
fn end(ids: &[u32], named: Option<u32>, side: &str) -> Result<(Option<u32>, bool)> {
    match (ids, named) {
        ([], named) => Ok((named, false)),
        ([id], None) => Ok((Some(*id), true)),
        ([id], Some(named)) if *id == named => Ok((Some(named), true)),
        _ => Err(Error::new(format!(
            "the ids {ids:?} are added {side} a text; GGUF supports only BOS before and EOS after"
        ))),
    }
}

/// Scores in the order of the merges: the result of the first merge gets the
/// highest score. Characters and tokens that no merge forms get the lowest.
fn scores(tokens: &Strings, bpe: &BpeParts) -> Vec<f32> {
    let mut ranks = HashMap::with_capacity(bpe.merges.len());
    for (rank, (left, right)) in bpe.merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let last = bpe.merges.len();
    tokens.iter().map(|token| -(ranks.get(token).copied().unwrap_or(last) as f32)).collect()
}

/// A warning if two tokens together form a token but have no merge:
/// SentencePiece's BPE, which has no merges, would join them.
fn loose_pairs(bpe: &BpeParts) -> Option<String> {
    let tokens: HashSet<&str> = bpe.vocabulary.iter().map(|(token, _)| token).collect();
    let merges: HashSet<(&str, &str)> = bpe.merges.iter().collect();
    let loose = |token: &&str| {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        cuts.into_iter().any(|(left, right)| {
            tokens.contains(left) && tokens.contains(right) && !merges.contains(&(left, right))
        })
    };
    let (count, first) =
        tokens.iter().copied().filter(loose).fold((0, None::<&str>), |(count, first), token| {
            (count + 1, Some(first.map_or(token, |first| first.min(token))))
        });
    first.map(|first| {
        format!(
            "{count} tokens, such as `{}`, can be formed by pairs that have no merge; \
             a GGUF tokenizer merges these, so some texts get other ids",
            short(first)
        )
    })
}
