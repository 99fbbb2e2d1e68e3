//! Text to token ids and back.
//!
//! A prompt is a list of spans, and one rule connects them: **the spans are
//! encoded as one text, in which a special token is not seen if a user wrote
//! any segment of its spelling.** So a prompt whose user text spells no special
//! token has exactly the ids of the joined text, whatever the normalizer, the
//! words and the merges do across the borders of spans; and user text can
//! neither make a special token, alone or together with its neighbours, nor
//! hide one of the template's.
//!
//! "Special" is what the vendor's files mark so (`special` in `tokenizer.json`,
//! control tokens in GGUF). Other added tokens, such as runs of spaces or
//! `<think>` of Qwen3, are the vendor's spellings for parts of ordinary text
//! and are seen everywhere.

use std::collections::HashSet;

use girih_tensor::{Error, Result};

use super::added::{AddedToken, Matcher, TextSegment, UserRanges};
use super::decoding::Decoding;
use super::normalize::Normalization;
use super::parts::{BosEosIds, NamedTokens, TokenizerModel, TokenizerParts};
use super::span::{TextOrigin, TextSpan};
use super::split::{self, PreTokenizerStep, TextPosition};
use super::table::TokenTable;
use crate::limits::TextLimits;

/// Bytes of text that are encoded at once. Some families (Gemma) see a text as
/// one word, for which BPE needs about a hundred bytes of memory per byte.
pub const MAX_TEXT_BYTES: usize = 8 << 20;

/// Whether the ids that open and close a sequence (BOS, EOS) are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BosEos {
    /// As the tokenizer's post-processor says.
    Add,
    /// Only the text: a chat template spells its own BOS.
    Omit,
}

/// A model's tokenizer.
pub struct Tokenizer {
    table: TokenTable,
    special: HashSet<u32>,
    /// Added tokens that are looked for in the text as it is.
    plain: Matcher,
    /// Added tokens that are looked for in the normalized text.
    normalized: Matcher,
    normalization: Normalization,
    steps: Vec<PreTokenizerStep>,
    model: TokenizerModel,
    bos_eos: BosEosIds,
    decoding: Decoding,
    named: NamedTokens,
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
    /// Puts checked parts together.
    pub(super) fn assemble(parts: TokenizerParts, limits: &TextLimits) -> Result<Tokenizer> {
        let table = parts.table(limits)?;
        let TokenizerParts { added, normalization, steps, model, bos_eos, decoding, named } = parts;
        let special = added.iter().filter(|token| token.special).map(|token| token.id).collect();
        let model = model.build(&special, &table).map_err(|error| error.of("model"))?;
        let (normalized, plain) = added.into_iter().partition(|token: &AddedToken| token.normalized);
        let (plain, normalized) =
            (matcher(plain, &Normalization::none())?, matcher(normalized, &normalization)?);
        Ok(Tokenizer {
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

    /// The ids of a text from one origin.
    pub fn encode(&self, text: &str, origin: TextOrigin, bos_eos: BosEos) -> Result<Vec<u32>> {
        let mut users = UserRanges::default();
        if origin == TextOrigin::User {
            users.push(0..text.len());
        }
        self.encode_text(text, &users, bos_eos)
    }

    /// The ids of a prompt, as the module's documentation defines them.
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
            return Err(Error::new(format!(
                "the text has {} bytes; at most {MAX_TEXT_BYTES} are encoded at once, so cut it into parts",
                text.len()
            )));
        }
        let mut ids = Vec::new();
        if bos_eos == BosEos::Add {
            ids.extend(&self.bos_eos.before);
        }
        for segment in self.plain.cut(text, |range| users.touch(range)) {
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

    /// Encodes what stands between two added tokens.
    fn encode_segment(
        &self,
        text: &str,
        segment: &TextSegment,
        users: &UserRanges,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let source = &text[segment.range.clone()];
        let position = if segment.range.start == 0 { TextPosition::Start } else { TextPosition::Later };
        if self.normalization.is_none() && self.normalized.is_empty() {
            return self.encode_plain(source, position, ids);
        }
        let normal = self.normalization.apply(source)?;
        let is_users = |range: &std::ops::Range<usize>| {
            let original = normal.source_range(range.clone());
            original.is_none_or(|range| {
                users.touch(&(segment.range.start + range.start..segment.range.start + range.end))
            })
        };
        for inner in self.normalized.cut(normal.text(), is_users) {
            let position = if inner.range.start == 0 { position } else { TextPosition::Later };
            match inner.token {
                Some(id) => ids.push(id),
                None => self.encode_plain(&normal.text()[inner.range], position, ids)?,
            }
        }
        Ok(())
    }

    fn encode_plain(&self, text: &str, position: TextPosition, ids: &mut Vec<u32>) -> Result<()> {
        for word in split::pre_tokenize(&self.steps, text.to_owned(), position) {
            self.model.encode(&word, &self.table, ids)?;
        }
        Ok(())
    }

    pub(super) fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    /// One more than the highest id that has a token.
    pub fn vocab_size(&self) -> u32 {
        self.table.len()
    }

    /// The token of an id as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn token(&self, id: u32) -> Option<&str> {
        self.table.token(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// Whether this is a control token, which user text never makes.
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
        return Err(Error::new(format!("the normalizer leaves nothing of added token {}", tokens[empty].id)));
    }
    Matcher::new(tokens, &spellings)
}
