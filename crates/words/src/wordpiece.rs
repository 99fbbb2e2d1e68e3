//! WordPiece: the model of BERT's tokenizers.
//!
//! A word becomes the longest token that begins it, then the longest token with
//! the prefix of continuations (`##`) that begins the rest, and so on. A word of
//! which a part has no token becomes one unknown token (Devlin et al. 2018, the
//! `WordpieceTokenizer` of its code; `tokenizers` defines the ids).
//!
//! The tokens are sorted by their bytes. Each byte of a word narrows the range of
//! tokens that begin like it, so a word costs at most its length times the length
//! of the longest token.

use std::collections::HashSet;
use std::ops::Range;

use girih_tensor::{Error, Result};

use super::short::short;
use super::table::{TokenTable, Vocabulary};

/// The maximum bytes of a token, which bound the work per byte of text. Real ones
/// have less than 100.
const MAX_PIECE_BYTES: usize = 512;

/// The maximum characters of a word in the models of BERT's authors.
pub(super) const MAX_WORD_CHARS: usize = 100;
/// The prefix of continuations in these models.
pub(super) const CONTINUATION_PREFIX: &str = "##";

/// Begins the tokens that begin a word in GGUF, where continuations have no prefix.
pub(super) const WORD_MARK: char = '▁';

/// The parts of a WordPiece model, not yet built.
pub(super) struct WordPieceParts {
    pub vocabulary: Vocabulary,
    /// The token that replaces a word without tokens (`unk_token`).
    pub unknown: String,
    /// Begins the tokens that continue a word (`continuing_subword_prefix`).
    pub prefix: String,
    /// A word with more characters becomes the unknown token
    /// (`max_input_chars_per_word`).
    pub max_chars: usize,
}

/// A WordPiece model. Its functions take the table of its tokens as an argument.
pub(super) struct WordPiece {
    /// The tokens that text can produce, sorted by their bytes.
    sorted: Vec<u32>,
    start: PieceRange,
    continuation: PieceRange,
    unknown: u32,
    max_chars: usize,
}

/// The tokens that begin with one text, as a range of the sorted tokens.
#[derive(Clone)]
struct PieceRange {
    tokens: Range<usize>,
    /// Bytes of the text.
    depth: usize,
}

impl WordPiece {
    /// Builds the model of `parts`; `table` contains its tokens. No part of a text
    /// becomes one of `special`, because text must never produce these.
    pub(super) fn new(
        parts: &WordPieceParts,
        special: &HashSet<u32>,
        table: &TokenTable,
    ) -> Result<WordPiece> {
        let WordPieceParts { vocabulary, unknown, prefix, max_chars } = parts;
        let unknown = vocabulary.id(unknown).ok_or_else(|| {
            Error::new(format!("the unknown token `{}` is not in the vocabulary", short(unknown)))
        })?;
        let produced = vocabulary.iter().filter(|(_, id)| !special.contains(id));
        let mut sorted = Vec::with_capacity(vocabulary.ids.len());
        for (token, id) in produced {
            if token.len() > MAX_PIECE_BYTES {
                let bytes = token.len();
                return Err(Error::new(format!(
                    "token {id} has {bytes} bytes; the maximum is {MAX_PIECE_BYTES}"
                )));
            }
            sorted.push(id);
        }
        sorted.sort_unstable_by_key(|&id| table.token(id));
        let start = PieceRange { tokens: 0..sorted.len(), depth: 0 };
        let mut model =
            WordPiece { sorted, start: start.clone(), continuation: start, unknown, max_chars: *max_chars };
        for byte in prefix.bytes() {
            model.continuation = model.narrowed(&model.continuation, byte, table);
        }
        Ok(model)
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &str, table: &TokenTable, ids: &mut Vec<u32>) {
        let before = ids.len();
        let is_long = word.chars().nth(self.max_chars).is_some();
        if is_long || !self.encode_pieces(word.as_bytes(), table, ids) {
            ids.truncate(before);
            ids.push(self.unknown);
        }
    }

    /// Appends the ids of the pieces of a word. Returns whether each part has a
    /// token.
    fn encode_pieces(&self, mut rest: &[u8], table: &TokenTable, ids: &mut Vec<u32>) -> bool {
        let mut pieces = &self.start;
        while !rest.is_empty() {
            let Some((id, len)) = self.longest(rest, pieces, table) else { return false };
            ids.push(id);
            rest = &rest[len..];
            pieces = &self.continuation;
        }
        true
    }

    /// The longest token of `pieces` whose rest begins `text`, and the bytes of
    /// this rest.
    fn longest(&self, text: &[u8], pieces: &PieceRange, table: &TokenTable) -> Option<(u32, usize)> {
        let mut pieces = pieces.clone();
        let mut longest = None;
        for (byte, len) in text.iter().zip(1..) {
            pieces = self.narrowed(&pieces, *byte, table);
            // A token sorts before the longer ones that it begins.
            let Some(&first) = self.sorted[pieces.tokens.clone()].first() else { break };
            if byte_at(first, pieces.depth, table).is_none() {
                longest = Some((first, len));
            }
        }
        longest
    }

    /// The tokens of `pieces` that continue with `byte`.
    fn narrowed(&self, pieces: &PieceRange, byte: u8, table: &TokenTable) -> PieceRange {
        let PieceRange { tokens, depth } = pieces.clone();
        let sorted = &self.sorted[tokens.clone()];
        let from = sorted.partition_point(|&id| byte_at(id, depth, table) < Some(byte));
        let count = sorted[from..].partition_point(|&id| byte_at(id, depth, table) == Some(byte));
        let start = tokens.start + from;
        PieceRange { tokens: start..start + count, depth: depth + 1 }
    }
}

/// The byte of a token at `depth`; `None` at its end.
fn byte_at(id: u32, depth: usize, table: &TokenTable) -> Option<u8> {
    table.token(id)?.as_bytes().get(depth).copied()
}

/// A token of GGUF as in `tokenizer.json`.
pub(super) fn of_gguf(token: &str) -> String {
    match token.strip_prefix(WORD_MARK) {
        Some(word) if !word.is_empty() => word.to_owned(),
        // Converters may leave `[unused0]` without a mark.
        _ if token.len() > 2 && token.starts_with('[') && token.ends_with(']') => token.to_owned(),
        _ => format!("{CONTINUATION_PREFIX}{token}"),
    }
}

/// A token of `tokenizer.json` as in GGUF.
pub(super) fn to_gguf(token: &str) -> String {
    match token.strip_prefix(CONTINUATION_PREFIX) {
        Some(rest) => rest.to_owned(),
        None => format!("{WORD_MARK}{token}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::limits::TextLimits;

    /// The model with these tokens and its table. The first token is the unknown one.
    fn model(
        tokens: &[&str],
        prefix: &str,
        max_chars: usize,
        special: &[u32],
    ) -> Result<(WordPiece, TokenTable)> {
        let mut table = TokenTable::default();
        for (token, id) in tokens.iter().zip(0..) {
            table.insert(token, id, &TextLimits::DEFAULT).expect("tokens are distinct");
        }
        let ids = (0..table.len()).collect();
        let vocabulary = Vocabulary { tokens: tokens.iter().collect(), ids };
        let (unknown, prefix) = (tokens[0].to_owned(), prefix.to_owned());
        let parts = WordPieceParts { vocabulary, unknown, prefix, max_chars };
        let model = WordPiece::new(&parts, &special.iter().copied().collect(), &table)?;
        Ok((model, table))
    }

    fn encode((model, table): &(WordPiece, TokenTable), word: &str) -> Vec<u32> {
        let mut ids = vec![77];
        model.encode(word, table, &mut ids);
        assert_eq!(ids.remove(0), 77, "earlier ids are kept");
        ids
    }

    #[test]
    fn special_tokens_are_never_produced() {
        let tokens = ["[UNK]", "ab", "a", "##b"];
        let of = |special: &[u32]| encode(&model(&tokens, "##", 9, special).expect("a vocabulary"), "ab");
        assert_eq!((of(&[]), of(&[1]), of(&[1, 3]), of(&[0])), (vec![1], vec![2, 3], vec![0], vec![1]));
    }

    #[test]
    fn long_words_take_linear_time_with_any_maximum() {
        let long = format!("##{}b", "a".repeat(MAX_PIECE_BYTES - 3));
        // Each `a` is compared with all of the long token and then matches the short one.
        let model = model(&["?", "a", "##a", &long], "##", usize::MAX, &[]).expect("a vocabulary");
        let started = Instant::now();
        assert_eq!(encode(&model, &"a".repeat(20_000)).len(), 20_000);
        assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    }

    #[test]
    fn a_long_token_and_a_missing_unknown_token_are_refused() {
        let refusal = |tokens: &[&str]| model(tokens, "##", 9, &[]).err().map(|error| error.to_string());
        let long = "a".repeat(MAX_PIECE_BYTES + 1);
        assert_eq!(refusal(&["?", &long]).as_deref(), Some("token 1 has 513 bytes; the maximum is 512"));
        assert_eq!(refusal(&["?", &long[1..]]), None);
        let table = TokenTable::default();
        let parts = WordPieceParts {
            vocabulary: Vocabulary::default(),
            unknown: "?".to_owned(),
            prefix: String::new(),
            max_chars: 9,
        };
        let error = WordPiece::new(&parts, &HashSet::new(), &table).err().expect("no unknown token");
        assert_eq!(error.to_string(), "the unknown token `?` is not in the vocabulary");
    }

    #[test]
    fn tokens_of_gguf_have_a_mark_instead_of_the_prefix() {
        for (json, gguf) in [("the", "▁the"), ("##s", "s"), ("[", "▁["), ("##[", "["), ("##▁", "▁")] {
            assert_eq!((of_gguf(gguf).as_str(), to_gguf(json).as_str()), (json, gguf));
        }
        assert_eq!(of_gguf("[unused0]"), "[unused0]");
    }
}
