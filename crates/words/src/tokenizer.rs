//! Text to token ids and back.
//!
//! A prompt is a list of spans, and one rule connects them: **the spans are
//! encoded as one text, in which a special token is not seen if a user wrote
//! any part of its spelling.** So a prompt whose user text spells no special
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

use super::added::{AddedToken, Matcher, Part, UserRanges};
use super::decoding::Decoding;
use super::normalize::Normalization;
use super::parts::{EndIds, Model, Named, Parts};
use super::span::{Origin, Span};
use super::split::{self, Place, Step};
use super::table::Table;
use crate::limits::Limits;

/// Bytes of text that are encoded at once. Some families (Gemma) see a text as
/// one word, for which BPE needs about a hundred bytes of memory per byte.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// Whether the ids that open and close a sequence (BOS, EOS) are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// As the tokenizer's post-processor says.
    Add,
    /// Only the text: a chat template spells its own BOS.
    Omit,
}

/// A model's tokenizer.
pub struct Tokenizer {
    table: Table,
    special: HashSet<u32>,
    /// Added tokens that are looked for in the text as it is.
    plain: Matcher,
    /// Added tokens that are looked for in the normalized text.
    normalized: Matcher,
    normalization: Normalization,
    steps: Vec<Step>,
    model: Model,
    ends: EndIds,
    decoding: Decoding,
    named: Named,
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
    pub(super) fn assemble(parts: Parts, limits: &Limits) -> Result<Tokenizer> {
        let table = parts.table(limits)?;
        let Parts { added, normalization, steps, model, ends, decoding, named } = parts;
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
            ends,
            decoding,
            named,
        })
    }

    /// The ids of a text from one origin.
    pub fn encode(&self, text: &str, origin: Origin, ends: Ends) -> Result<Vec<u32>> {
        let mut users = UserRanges::default();
        if origin == Origin::User {
            users.push(0..text.len());
        }
        self.encode_text(text, &users, ends)
    }

    /// The ids of a prompt, as the module's documentation defines them.
    pub fn encode_spans(&self, spans: &[Span], ends: Ends) -> Result<Vec<u32>> {
        let mut text = String::with_capacity(spans.iter().map(|span| span.text.len()).sum());
        let mut users = UserRanges::default();
        for span in spans {
            let start = text.len();
            text.push_str(&span.text);
            if span.origin == Origin::User {
                users.push(start..text.len());
            }
        }
        self.encode_text(&text, &users, ends)
    }

    fn encode_text(&self, text: &str, users: &UserRanges, ends: Ends) -> Result<Vec<u32>> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::new(format!(
                "the text has {} bytes; at most {TEXT_BYTES_MAX} are encoded at once, so cut it into parts",
                text.len()
            )));
        }
        let mut ids = Vec::new();
        if ends == Ends::Add {
            ids.extend(&self.ends.before);
        }
        for part in self.plain.cut(text, |range| users.touch(range)) {
            match part.token {
                Some(id) => ids.push(id),
                None => self.encode_part(text, &part, users, &mut ids)?,
            }
        }
        if ends == Ends::Add {
            ids.extend(&self.ends.after);
        }
        Ok(ids)
    }

    /// Encodes what stands between two added tokens.
    fn encode_part(&self, text: &str, part: &Part, users: &UserRanges, ids: &mut Vec<u32>) -> Result<()> {
        let source = &text[part.range.clone()];
        let place = if part.range.start == 0 { Place::Start } else { Place::Later };
        if self.normalization.is_none() && self.normalized.is_empty() {
            return self.encode_words(source, place, ids);
        }
        let normal = self.normalization.apply(source)?;
        let is_users = |range: &std::ops::Range<usize>| {
            let original = normal.origin(range.clone());
            original.is_none_or(|range| {
                users.touch(&(part.range.start + range.start..part.range.start + range.end))
            })
        };
        for inner in self.normalized.cut(normal.text(), is_users) {
            let place = if inner.range.start == 0 { place } else { Place::Later };
            match inner.token {
                Some(id) => ids.push(id),
                None => self.encode_words(&normal.text()[inner.range], place, ids)?,
            }
        }
        Ok(())
    }

    fn encode_words(&self, text: &str, place: Place, ids: &mut Vec<u32>) -> Result<()> {
        for word in split::words(&self.steps, text.to_owned(), place) {
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
    pub fn named(&self) -> Named {
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
