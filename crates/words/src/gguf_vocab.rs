//! Builds a tokenizer from the vocabulary of a GGUF file.
//!
//! The defaults are those of llama.cpp (`llama-vocab.cpp`). The default of a
//! missing key depends on the model and on the pre-tokenizer's name.

use std::borrow::Cow;

use girih_file::{Metadata, Strings};
use girih_tensor::{Error, Result};

use super::added::AddedToken;
use super::bert::BertRules;
use super::bpe::{BpeParts, Merges};
use super::decoding::{Decoding, byte_token};
use super::model_json;
use super::named_rules::{self, NamedRules};
use super::normalize::Normalization;
use super::parts::{BosEosIds, NamedTokens, TokenizerModelParts, TokenizerParts};
use super::short::short;
use super::split::PreTokenizerStep;
use super::spm::{MAX_SCORED_TOKEN_BYTES, Spm};
use super::table::Vocabulary;
use super::tokenizer::Tokenizer;
use super::wordpiece::{self, CONTINUATION_PREFIX, MAX_WORD_CHARS, WORD_MARK, WordPieceParts};
use crate::limits::TextLimits;

/// SentencePiece's replacement of a space.
const SPACE_MARK: char = '▁';

/// The `tokenizer.ggml.*` values of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `llama` for SentencePiece's BPE with scores, `gpt2` for byte-level BPE, `gemma4`
    /// for BPE with merges and marks for spaces, `bert` for WordPiece.
    pub model: String,
    /// `pre`: the name of the pre-tokenizer.
    pub pre: Option<String>,
    /// `tokens`, by id.
    pub tokens: Cow<'a, Strings>,
    /// `scores`, by id.
    pub scores: Option<Vec<f32>>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Option<Vec<i32>>,
    /// `merges`: two tokens with a space between them.
    pub merges: Option<Cow<'a, Strings>>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `cls_token_id`: begins a text of `bert`, unless `bos` does.
    pub cls: Option<u32>,
    /// `seperator_token_id`, which is llama.cpp's spelling: ends a text of `bert`.
    pub sep: Option<u32>,
    /// `add_sep_token`.
    pub add_sep: Option<bool>,
    /// `normalizer.lowercase`, for `bert`.
    pub lowercase: Option<bool>,
    /// `normalizer.strip_accents`, for `bert`.
    pub strip_accents: Option<bool>,
}

/// The type of a token: `token_type` in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    const ALL: [TokenType; 6] = [
        TokenType::Normal,
        TokenType::Unknown,
        TokenType::Control,
        TokenType::UserDefined,
        TokenType::Unused,
        TokenType::Byte,
    ];

    fn of(number: i32) -> Option<TokenType> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        TokenType::ALL.get(index).copied()
    }

    /// The number of this type in GGUF.
    pub(super) fn number(self) -> i32 {
        self as i32 + 1
    }
}

impl<'a> GgufVocab<'a> {
    /// Reads the vocabulary from the metadata of a GGUF file.
    ///
    /// # Errors
    /// When the model or the tokens are missing, or a value has another type.
    pub fn of(metadata: &'a Metadata) -> Result<GgufVocab<'a>> {
        let id = |name: &str| metadata.get::<u32>(&format!("tokenizer.ggml.{name}_token_id"));
        let switch = |name: &str| metadata.get::<bool>(&format!("tokenizer.ggml.add_{name}"));
        Ok(GgufVocab {
            model: metadata.require::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: metadata.get::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: Cow::Borrowed(metadata.require("tokenizer.ggml.tokens")?),
            scores: metadata.get::<&[f32]>("tokenizer.ggml.scores")?.map(<[f32]>::to_vec),
            types: metadata.get::<&[i32]>("tokenizer.ggml.token_type")?.map(<[i32]>::to_vec),
            merges: metadata.get("tokenizer.ggml.merges")?.map(Cow::Borrowed),
            bos: id("bos")?,
            eos: id("eos")?,
            unk: id("unknown")?,
            pad: id("padding")?,
            add_bos: switch("bos_token")?,
            add_eos: switch("eos_token")?,
            add_space_prefix: switch("space_prefix")?,
            cls: id("cls")?,
            sep: id("seperator")?,
            add_sep: switch("sep_token")?,
            lowercase: metadata.get("tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: metadata.get("tokenizer.ggml.normalizer.strip_accents")?,
        })
    }

    /// Builds the tokenizer of this vocabulary.
    ///
    /// # Errors
    /// When the lists have different lengths, a value is out of range, or the
    /// model or the pre-tokenizer is not supported.
    pub fn tokenizer(self, limits: &TextLimits) -> Result<Tokenizer> {
        let name = |error: Error| error.of("tokenizer.ggml");
        let parts = match self.model.as_str() {
            "llama" => self.spm_parts(limits),
            "gpt2" => self.bpe_parts(limits),
            "gemma4" => self.spaced_bpe_parts(limits),
            "bert" => self.wordpiece_parts(limits),
            other => Err(Error::new(format!(
                "model `{}` is not supported; it must be `llama`, `gpt2`, `gemma4` or `bert`",
                short(other)
            ))),
        };
        Tokenizer::assemble(parts.map_err(name)?, limits).map_err(name)
    }

    fn spm_parts(mut self, limits: &TextLimits) -> Result<TokenizerParts> {
        let token_types = self.token_types(limits)?;
        let spm = self.spm(&token_types)?;
        let prefix = self.add_space_prefix.unwrap_or(true);
        let mark = SPACE_MARK.to_string();
        let mut normalization = Normalization::none();
        if prefix {
            normalization.add_prepend(mark.clone())?;
        }
        normalization.add_replace(" ".to_owned(), mark.clone())?;
        Ok(TokenizerParts {
            added: self.added(&token_types),
            normalization,
            steps: Vec::<PreTokenizerStep>::new(),
            bos_eos: self.bos_eos(true)?,
            named: self.named(),
            decoding: Decoding::Pieces {
                replace: vec![(mark, " ".to_owned())],
                byte_fallback: true,
                strip: prefix.then_some((' ', 1)),
            },
            model: TokenizerModelParts::Spm(spm, self.tokens.into_owned()),
        })
    }

    fn spm(&self, token_types: &[TokenType]) -> Result<Spm> {
        let scores = self.scores.as_ref().ok_or_else(|| Error::new("scores are missing; SPM needs them"))?;
        if scores.len() != self.tokens.len() {
            let (scores, tokens) = (scores.len(), self.tokens.len());
            return Err(Error::new(format!("{scores} scores for {tokens} tokens; each token needs one")));
        }
        let (mut given, mut longest) = (vec![None; self.tokens.len()], 0);
        let mut bytes = Box::new([None; 256]);
        for (id, ((token, token_type), score)) in
            (0_u32..).zip(self.tokens.iter().zip(token_types).zip(scores))
        {
            match token_type {
                TokenType::Byte => {
                    let byte = byte_token(token).ok_or_else(|| {
                        Error::new(format!("byte token {id} is `{}`; it must be `<0xNN>`", short(token)))
                    })?;
                    bytes[usize::from(byte)] = Some(id);
                }
                TokenType::Control | TokenType::Unknown => {}
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                    check_joined(token, id, *score)?;
                    given[id as usize] = Some(*score);
                    longest = longest.max(token.len());
                }
            }
        }
        Ok(Spm { scores: given, bytes, unknown: self.unk, longest })
    }

    fn bpe_parts(mut self, limits: &TextLimits) -> Result<TokenizerParts> {
        let token_types = self.token_types(limits)?;
        let rules = rules(self.pre.as_deref())?;
        let mut normalization = Normalization::none();
        if let Some(form) = rules.form {
            normalization.add_form(form)?;
        }
        let merges = self.merges.take().ok_or_else(|| Error::new("merges are missing; BPE needs them"))?;
        let merges = pairs(&merges)?;
        let ids = (0..).take(self.tokens.len()).collect();
        Ok(TokenizerParts {
            added: self.added(&token_types),
            normalization,
            steps: rules.compiled()?,
            bos_eos: self.bos_eos(rules.add_bos)?,
            named: self.named(),
            decoding: Decoding::ByteLevel,
            model: TokenizerModelParts::Bpe(BpeParts {
                vocabulary: Vocabulary { tokens: self.tokens.into_owned(), ids },
                merges,
                unknown: None,
                fuse_unknown: false,
                byte_fallback: false,
                ignore_merges: rules.ignore_merges,
            }),
        })
    }

    /// BPE with merges of a text in which marks replace the spaces (Gemma 4's `tokenizer.json`).
    fn spaced_bpe_parts(mut self, limits: &TextLimits) -> Result<TokenizerParts> {
        let token_types = self.token_types(limits)?;
        let mark = SPACE_MARK.to_string();
        let mut normalization = Normalization::none();
        normalization.add_replace(" ".to_owned(), mark.clone())?;
        let merges = self.merges.take().ok_or_else(|| Error::new("merges are missing; BPE needs them"))?;
        let unknown = self.unk.and_then(|id| self.tokens.get(usize::try_from(id).ok()?));
        let unknown = unknown.map(str::to_owned);
        let ids = (0..).take(self.tokens.len()).collect();
        Ok(TokenizerParts {
            added: self.added(&token_types),
            normalization,
            steps: Vec::new(),
            bos_eos: self.bos_eos(true)?,
            named: self.named(),
            decoding: Decoding::Pieces {
                replace: vec![(mark, " ".to_owned())],
                byte_fallback: true,
                strip: None,
            },
            model: TokenizerModelParts::Bpe(BpeParts {
                vocabulary: Vocabulary { tokens: self.tokens.into_owned(), ids },
                merges: pairs(&merges)?,
                unknown,
                fuse_unknown: true,
                byte_fallback: true,
                ignore_merges: false,
            }),
        })
    }

    /// The name of the pre-tokenizer has no effect, as in llama.cpp.
    fn wordpiece_parts(mut self, limits: &TextLimits) -> Result<TokenizerParts> {
        let token_types = self.token_types(limits)?;
        let spelled = self.tokens.iter().zip(&token_types).map(|(token, token_type)| match token_type {
            TokenType::Normal | TokenType::Unused => Cow::Owned(wordpiece::of_gguf(token)),
            _ => Cow::Borrowed(token.strip_prefix(WORD_MARK).unwrap_or(token)),
        });
        self.tokens = Cow::Owned(spelled.collect());
        let unknown = self.unk.and_then(|id| self.tokens.get(usize::try_from(id).ok()?));
        let unknown = unknown
            .ok_or_else(|| {
                Error::new("unknown_token_id is missing or not the id of a token; WordPiece needs it")
            })?
            .to_owned();
        let lowercase = self.lowercase.unwrap_or(true);
        let strip_accents = self.strip_accents.unwrap_or(lowercase);
        let mut normalization = Normalization::none();
        normalization.add_bert(BertRules { lowercase, strip_accents, ..BertRules::UNCASED })?;
        Ok(TokenizerParts {
            added: self.added(&token_types),
            normalization,
            steps: vec![PreTokenizerStep::Bert],
            bos_eos: self.cls_sep()?,
            named: self.named(),
            decoding: Decoding::WordPiece { prefix: CONTINUATION_PREFIX.to_owned(), cleanup: true },
            model: TokenizerModelParts::WordPiece(WordPieceParts {
                vocabulary: Vocabulary {
                    ids: (0..).take(self.tokens.len()).collect(),
                    tokens: self.tokens.into_owned(),
                },
                unknown,
                prefix: CONTINUATION_PREFIX.to_owned(),
                max_chars: MAX_WORD_CHARS,
            }),
        })
    }

    /// The type of each token. Names empty tokens as llama.cpp does.
    fn token_types(&mut self, limits: &TextLimits) -> Result<Vec<TokenType>> {
        let count = self.tokens.len();
        let cap = usize::try_from(limits.vocabulary).unwrap_or(usize::MAX);
        if count > cap {
            return Err(Error::new(format!("{count} tokens; the maximum is {cap}")));
        }
        if self.tokens.iter().any(str::is_empty) {
            let named = self.tokens.iter().enumerate().map(|(id, token)| match token {
                "" => Cow::Owned(format!("[EMPTY_{id}]")),
                token => Cow::Borrowed(token),
            });
            self.tokens = Cow::Owned(named.collect());
        }
        let Some(numbers) = &self.types else {
            return Ok(vec![TokenType::Normal; count]);
        };
        if numbers.len() != count {
            return Err(Error::new(format!(
                "{} token types for {count} tokens; each token needs one",
                numbers.len()
            )));
        }
        let token_type = |(id, number): (usize, &i32)| {
            TokenType::of(*number)
                .ok_or_else(|| Error::new(format!("token {id} has type {number}; types are 1 to 6")))
        };
        numbers.iter().enumerate().map(token_type).collect()
    }

    /// The tokens that match literally in a text.
    fn added(&self, token_types: &[TokenType]) -> Vec<AddedToken> {
        let spelled = (0..).zip(self.tokens.iter().zip(token_types)).filter(|(_, (_, token_type))| {
            matches!(token_type, TokenType::Control | TokenType::Unknown | TokenType::UserDefined)
        });
        spelled
            .map(|(id, (token, token_type))| AddedToken {
                id,
                content: token.to_owned(),
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: *token_type != TokenType::UserDefined,
            })
            .collect()
    }

    fn bos_eos(&self, add_bos: bool) -> Result<BosEosIds> {
        let add_bos = self.add_bos.unwrap_or(add_bos && self.bos.is_some());
        Ok(BosEosIds {
            before: end(add_bos, self.bos, "add_bos_token", "bos_token_id")?,
            after: end(self.add_eos.unwrap_or(false), self.eos, "add_eos_token", "eos_token_id")?,
        })
    }

    /// The ids around a text of `bert`.
    fn cls_sep(&self) -> Result<BosEosIds> {
        if self.add_eos == Some(true) && self.eos != self.sep {
            return Err(Error::new("add_eos_token is on; a text of `bert` ends in the separator only"));
        }
        if let (Some(bos), Some(cls)) = (self.bos, self.cls)
            && bos != cls
        {
            let sentence =
                format!("bos_token_id is {bos} and cls_token_id {cls}; for `bert` they must be equal");
            return Err(Error::new(sentence));
        }
        let adds_sep = self.add_sep.unwrap_or(true) || self.add_eos == Some(true);
        Ok(BosEosIds {
            before: end(
                self.add_bos.unwrap_or(true),
                self.bos.or(self.cls),
                "add_bos_token",
                "cls_token_id",
            )?,
            after: end(adds_sep, self.sep, "add_sep_token", "seperator_token_id")?,
        })
    }

    fn named(&self) -> NamedTokens {
        NamedTokens { bos: self.bos, eos: self.eos, unk: self.unk, pad: self.pad }
    }
}

/// The ids at one end of a text.
fn end(add: bool, id: Option<u32>, switch: &str, name: &str) -> Result<Vec<u32>> {
    match (add, id) {
        (false, _) => Ok(Vec::new()),
        (true, Some(id)) => Ok(vec![id]),
        (true, None) => Err(Error::new(format!("{switch} is on, but {name} is missing"))),
    }
}

/// The two tokens of each merge.
fn pairs(merges: &Strings) -> Result<Merges> {
    let mut pairs = Merges::default();
    for text in merges.iter() {
        let (left, right) = model_json::merge(text)
            .ok_or_else(|| Error::new(format!("merge `{}` is not two tokens", short(text))))?;
        pairs.push(left, right);
    }
    Ok(pairs)
}

/// Checks a token that merges may form.
fn check_joined(token: &str, id: u32, score: f32) -> Result<()> {
    if !score.is_finite() {
        return Err(Error::new(format!("token {id} has the score {score}; it must be a finite number")));
    }
    if token.len() > MAX_SCORED_TOKEN_BYTES {
        return Err(Error::new(format!(
            "token {id} has {} bytes; the maximum is {MAX_SCORED_TOKEN_BYTES}",
            token.len()
        )));
    }
    Ok(())
}

fn rules(pre: Option<&str>) -> Result<&'static NamedRules> {
    pre.map(named_rules::named).unwrap_or_else(|| {
        Err(Error::new(
            "the pre-tokenizer's name (`pre`) is missing, so text cannot be split; convert the model again",
        ))
    })
}
