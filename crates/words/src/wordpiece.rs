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
