//! Converts text to token ids and back.
//!
//! A prompt is a list of spans with one rule: **the spans are encoded as one
//! text, in which a special token is ignored if a user wrote any part of it.** So
//! a prompt whose user text contains no special token has exactly the ids of the
//! joined text, because normalization, pre-tokenization and merges work across
//! span borders. User text can neither form a special token, alone or with its
//! neighbours, nor hide one of the template.
//!
//! Special tokens are those that the model's files mark (`special` in
//! `tokenizer.json`, control tokens in GGUF). Other added tokens, such as runs of
//! spaces or `<think>` of Qwen3, are ordinary text and match everywhere.

use std::collections::HashSet;
use std::sync::OnceLock;

use girih_tensor::{Error, ErrorKind, Result};

use super::added::{AddedToken, Matcher, TextSegment, UserRanges};
use super::decoding::Decoding;
use super::normalize::Normalization;
use super::parts::{BosEosIds, NamedTokens, TokenizerModel, TokenizerParts};
use super::span::{TextOrigin, TextSpan};
use super::split::{self, PreTokenizerStep, TextPosition};
use super::table::TokenTable;
use crate::limits::TextLimits;

/// The maximum number of bytes of text per call. Some families (Gemma) encode a
/// text as one word, for which BPE needs about 100 bytes of memory per byte.
pub const MAX_TEXT_BYTES: usize = 8 << 20;

/// Whether the ids around a sequence (BOS, EOS) are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BosEos {
    /// Adds the ids of the tokenizer's post-processor.
    Add,
    /// Encodes only the text: a chat template contains its own BOS.
    Omit,
}

/// A model's tokenizer.
pub struct Tokenizer {
    table: TokenTable,
    special: HashSet<u32>,
    /// Added tokens that match in the original text.
    plain: Matcher,
    /// Added tokens that match in the normalized text.
    normalized: Matcher,
    normalization: Normalization,
    steps: Vec<PreTokenizerStep>,
    model: TokenizerModel,
    bos_eos: BosEosIds,
    decoding: Decoding,
    named: NamedTokens,
    /// Those of [`Tokenizer::spelled_len`], once they were needed.
    lengths: OnceLock<Box<[u32]>>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocab_size())
            .field("named", &self.named)
            .finish()
    }
}

impl Tokenizer {
    /// Checks the parts and builds the tokenizer.
    pub(super) fn assemble(parts: TokenizerParts, limits: &TextLimits) -> Result<Tokenizer> {
        let table = parts.table(limits)?;
        let TokenizerParts { added, normalization, steps, model, bos_eos, decoding, named } = parts;
        let special = added.iter().filter(|token| token.special).map(|token| token.id).collect();
        let model = model.build(&special, &table).map_err(|error| error.of("model"))?;
        let (normalized, plain) = added.into_iter().partition(|token: &AddedToken| token.normalized);
        let (plain, normalized) =
            (matcher(plain, &Normalization::none())?, matcher(normalized, &normalization)?);
        Ok(Tokenizer {
            lengths: OnceLock::new(),
            table,
            special,
            plain,
            normalized,
            normalization,
            steps,
            model,
            bos_eos,
            decoding,
            named,
        })
    }

    /// Encodes a text from one origin.
    pub fn encode(&self, text: &str, origin: TextOrigin, bos_eos: BosEos) -> Result<Vec<u32>> {
        let mut users = UserRanges::default();
        if origin == TextOrigin::User {
            users.push(0..text.len());
        }
        self.encode_text(text, &users, bos_eos)
    }

    /// Encodes a prompt as the module's documentation defines.
    pub fn encode_spans(&self, spans: &[TextSpan], bos_eos: BosEos) -> Result<Vec<u32>> {
        let mut text = String::with_capacity(spans.iter().map(|span| span.text.len()).sum());
        let mut users = UserRanges::default();
        for span in spans {
            let start = text.len();
            text.push_str(&span.text);
            if span.origin == TextOrigin::User {
                users.push(start..text.len());
            }
        }
        self.encode_text(&text, &users, bos_eos)
    }

    fn encode_text(&self, text: &str, users: &UserRanges, bos_eos: BosEos) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT_BYTES {
            let sentence = format!(
                "the text has {} bytes; the maximum per call is {MAX_TEXT_BYTES}: split it",
                text.len()
            );
            return Err(Error::with_kind(ErrorKind::TooLong, sentence));
        }
        let mut ids = Vec::new();
        if bos_eos == BosEos::Add {
            ids.extend(&self.bos_eos.before);
        }
        for segment in self.plain.split(text, |range| users.touch(range)) {
            match segment.token {
                Some(id) => ids.push(id),
                None => self.encode_segment(text, &segment, users, &mut ids)?,
            }
        }
        if bos_eos == BosEos::Add {
            ids.extend(&self.bos_eos.after);
        }
        Ok(ids)
    }

    /// Encodes the text between two added tokens of the original text.
    fn encode_segment(
        &self,
        text: &str,
        segment: &TextSegment,
        users: &UserRanges,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let source = &text[segment.range.clone()];
        let begins = segment.range.start == 0;
        if self.normalization.is_none() && self.normalized.is_empty() {
            return self.encode_plain(source, usize::from(begins), ids);
        }
        let normal = self.normalization.apply(source)?;
        let is_users = |range: &std::ops::Range<usize>| {
            let original = normal.source_range(range.clone());
            original.is_none_or(|range| {
                users.touch(&(segment.range.start + range.start..segment.range.start + range.end))
            })
        };
        for inner in self.normalized.split(normal.text(), is_users) {
            match inner.token {
                Some(id) => ids.push(id),
                None => {
                    let opening = if begins { normal.opening(inner.range.clone()) } else { 0 };
                    self.encode_plain(&normal.text()[inner.range], opening, ids)?;
                }
            }
        }
        Ok(())
    }

    /// Encodes text that contains no added tokens; `opening` is that of [`split::pre_tokenize`].
    fn encode_plain(&self, text: &str, opening: usize, ids: &mut Vec<u32>) -> Result<()> {
        for word in split::pre_tokenize(&self.steps, text.to_owned(), opening) {
            self.model.encode(&word, &self.table, ids)?;
        }
        Ok(())
    }

    pub(super) fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    /// The highest id of a token, plus 1.
    pub fn vocab_size(&self) -> u32 {
        self.table.len()
    }

    /// The token of an id as in the vocabulary (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn token(&self, id: u32) -> Option<&str> {
        self.table.token(id)
    }

    /// The id of a token as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// The first id, among those that both tokenizers have, whose token decodes to other bytes.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<u32> {
        let is_equal = |token: &str, theirs: &str| match self.decoding == other.decoding {
            true => token == theirs,
            false => {
                let position = TextPosition::Later;
                self.decoding.bytes(token, position) == other.decoding.bytes(theirs, position)
            }
        };
        let mut ids = 0..self.vocab_size().min(other.vocab_size());
        ids.find(|&id| match (self.token(id), other.token(id)) {
            (Some(token), Some(theirs)) => !is_equal(token, theirs),
            _ => false,
        })
    }

    /// The bytes that a token adds to a text that has begun, perhaps a part of a character; none
    /// for special tokens and ids without a token. For a constraint on the bytes of a reply.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.table.token(id) {
            Some(token) if !self.is_special(id) => self.decoding.bytes(token, TextPosition::Later),
            _ => Vec::new(),
        }
    }

    /// The number of bytes that a token takes in the text of a prompt, where special tokens are spelled. The first call makes a table of
    /// all tokens.
    pub fn spelled_len(&self, id: u32) -> usize {
        let len = |id: u32| match self.table.token(id) {
            Some(token) if self.is_special(id) => token.len(),
            Some(token) => self.decoding.len(token),
            None => 0,
        };
        let lengths = self.lengths.get_or_init(|| {
            (0..self.vocab_size()).map(|id| u32::try_from(len(id)).unwrap_or(u32::MAX)).collect()
        });
        lengths.get(id as usize).map_or(0, |length| *length as usize)
    }

    /// The tokens whose bytes contain those of a text, in order of id; none for an empty text.
    pub fn tokens_containing(&self, text: &str) -> Vec<u32> {
        let contains = |id: &u32| {
            let bytes = self.token_bytes(*id);
            !text.is_empty() && bytes.windows(text.len()).any(|part| part == text.as_bytes())
        };
        (0..self.vocab_size()).filter(contains).collect()
    }

    /// Whether this is a control token, which user text never produces.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The ids of BOS, EOS, the unknown and the padding token.
    pub fn named(&self) -> NamedTokens {
        self.named
    }
}

fn matcher(tokens: Vec<AddedToken>, normalization: &Normalization) -> Result<Matcher> {
    let spellings = tokens
        .iter()
        .map(|token| Ok(normalization.apply(&token.content)?.text().to_owned()))
        .collect::<Result<Vec<String>>>()?;
    if let Some(empty) = spellings.iter().position(String::is_empty) {
        return Err(Error::new(format!(
            "the normalizer deletes all text of added token {}",
            tokens[empty].id
        )));
    }
    Matcher::new(tokens, &spellings)
}
