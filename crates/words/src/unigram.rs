//! Unigram: the model of SentencePiece that splits a text into the tokens with the highest sum of
//! scores (Kudo 2018, section 3.2).
//!
//! The `tokenizers` crate defines the ids: scores are added from left to right in 64 bits, of two
//! equal sums the one found first stays, and a character without a token costs 10 more than the
//! lowest score. Tests compare the two.

use std::collections::HashSet;
use std::ops::Range;

use girih_tensor::{Error, Result};

use super::table::{TokenTable, Vocabulary};

/// What a character without a token costs, below the lowest score (`K_UNK_PENALTY`).
const UNKNOWN_PENALTY: f64 = 10.0;
/// The maximum bytes of a token, which bound the work per character. SentencePiece's default is 16
/// characters.
const MAX_TOKEN_BYTES: usize = 256;

/// The parts of a Unigram model, not yet built.
pub(super) struct UnigramParts {
    /// The ids are consecutive.
    pub vocabulary: Vocabulary,
    /// By id.
    pub scores: Vec<f64>,
    pub unknown: Option<u32>,
    /// Whether a character without a token becomes the tokens of its bytes, `<0xNN>`.
    pub byte_fallback: bool,
}

/// A Unigram model. Its functions take the table of its tokens as an argument.
pub(super) struct Unigram {
    /// The ids of the tokens that text can produce, in the order of their bytes.
    sorted: Vec<u32>,
    scores: Vec<f64>,
    unknown: Option<u32>,
    unknown_score: f64,
    byte_fallback: bool,
}

/// The best way to reach a position of the text: the last token, if there is one, and the sum.
#[derive(Clone, Copy)]
struct Reached {
    start: usize,
    id: Option<u32>,
    sum: f64,
}

impl Unigram {
    /// Builds the model of `parts`; `table` contains its tokens. It never produces one of `special`.
    pub(super) fn new(parts: UnigramParts, special: &HashSet<u32>, table: &TokenTable) -> Result<Unigram> {
        let UnigramParts { vocabulary, scores, unknown, byte_fallback } = parts;
        if let Some(unknown) = unknown.filter(|id| *id as usize >= scores.len()) {
            return Err(Error::new(format!(
                "unk_id is {unknown}, which is not in the vocabulary of {}",
                scores.len()
            )));
        }
        let mut sorted = Vec::with_capacity(scores.len());
        for (token, id) in vocabulary.iter() {
            if token.len() > MAX_TOKEN_BYTES {
                return Err(Error::new(format!(
                    "token {id} has {} bytes; the maximum of Unigram is {MAX_TOKEN_BYTES}",
                    token.len()
                )));
            }
            if !token.is_empty() && !special.contains(&id) {
                sorted.push(id);
            }
        }
        sorted.sort_unstable_by_key(|id| table.token(*id));
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Unigram { sorted, scores, unknown, unknown_score: lowest - UNKNOWN_PENALTY, byte_fallback })
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        let best = self.best(word, table);
        // Adjacent unknown characters are one piece.
        let mut pieces: Vec<(Range<usize>, bool)> = Vec::new();
        let mut end = word.len();
        while end > 0 {
            let Reached { start, id, .. } = best[end].expect("every character has a token or is unknown");
            let is_unknown = id.is_none() || id == self.unknown;
            match pieces.last_mut() {
                Some((piece, true)) if is_unknown => piece.start = start,
                _ => pieces.push((start..end, is_unknown)),
            }
            end = start;
        }
        for (piece, is_unknown) in pieces.into_iter().rev() {
            self.push_piece(&word[piece], is_unknown, table, ids)?;
        }
        Ok(())
    }

    /// The best way to each position of `word`.
    fn best(&self, word: &str, table: &TokenTable) -> Vec<Option<Reached>> {
        let mut best: Vec<Option<Reached>> = vec![None; word.len() + 1];
        for (start, char) in word.char_indices() {
            let before = best[start].map_or(0.0, |reached| reached.sum);
            let mut reach = |end: usize, id: Option<u32>, score: f64| {
                let sum = score + before;
                if best[end].is_none_or(|other| sum > other.sum) {
                    best[end] = Some(Reached { start, id, sum });
                }
            };
            let mut has_single = false;
            for id in self.prefixes(&word.as_bytes()[start..], table) {
                let end = start + table.token(id).map_or(0, str::len);
                reach(end, Some(id), self.scores[id as usize]);
                has_single |= end == start + char.len_utf8();
            }
            if !has_single {
                reach(start + char.len_utf8(), None, self.unknown_score);
            }
        }
        best
    }

    /// The tokens with which `bytes` begin, shortest first.
    fn prefixes(&self, bytes: &[u8], table: &TokenTable) -> Vec<u32> {
        let token = |id: u32| table.token(id).unwrap_or_default().as_bytes();
        let mut found = Vec::new();
        // The sorted tokens that begin with the first bytes.
        let mut range = self.sorted.as_slice();
        for (at, byte) in bytes.iter().enumerate() {
            // A token that is as short as the bytes before comes first; it was found.
            let begin = range.partition_point(|id| token(*id).get(at).is_none_or(|other| other < byte));
            range = &range[begin..];
            range = &range[..range.partition_point(|id| token(*id).get(at) == Some(byte))];
            match range.first() {
                None => break,
                Some(id) if token(*id).len() == at + 1 => found.push(*id),
                Some(_) => {}
            }
        }
        found
    }

    fn push_piece(
        &self,
        piece: &str,
        is_unknown: bool,
        table: &TokenTable,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let is_it = |id: &u32| table.token(*id).is_some_and(|token| token == piece);
        let known = table.id(piece).filter(|id| {
            let at = self.sorted.partition_point(|other| table.token(*other) < Some(piece));
            self.sorted.get(at).is_some_and(|other| other == id && is_it(other))
        });
        if let Some(id) = known {
            ids.push(id);
            return Ok(());
        }
        debug_assert!(is_unknown, "a known piece is a token");
        let bytes: Option<Vec<u32>> = match self.byte_fallback {
            true => piece.bytes().map(|byte| table.id(&format!("<0x{byte:02X}>"))).collect(),
            false => None,
        };
        match (bytes, self.unknown) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unknown)) => ids.push(unknown),
            (None, None) => {
                return Err(Error::new(
                    "a character of the text has no token, and the vocabulary has no unknown token",
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TextLimits;

    fn sample(tokens: &[(&str, f64)], byte_fallback: bool, special: &[u32]) -> (Unigram, TokenTable) {
        let mut table = TokenTable::default();
        for ((token, _), id) in tokens.iter().zip(0..) {
            table.insert(token, id, &TextLimits::DEFAULT).expect("tokens are distinct");
        }
        let parts = UnigramParts {
            vocabulary: Vocabulary {
                tokens: tokens.iter().map(|(token, _)| *token).collect(),
                ids: (0..table.len()).collect(),
            },
            scores: tokens.iter().map(|(_, score)| *score).collect(),
            unknown: Some(0),
            byte_fallback,
        };
        let special = special.iter().copied().collect();
        (Unigram::new(parts, &special, &table).expect("a small model"), table)
    }

    fn encode((model, table): &(Unigram, TokenTable), word: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(word, table, &mut ids).expect("there is an unknown token");
        ids
    }

    const TOKENS: [(&str, f64); 6] =
        [("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -2.5), ("abc", -9.0), ("<0xC3>", -3.0)];

    #[test]
    fn the_highest_sum_wins_and_of_equal_sums_the_first() {
        let model = sample(&TOKENS, false, &[]);
        assert_eq!(encode(&model, "ab"), [3]);
        assert_eq!(encode(&model, "abc"), [4]);
        assert_eq!(encode(&model, "aab"), [1, 3]);
        assert_eq!(encode(&model, ""), [] as [u32; 0]);
        // "a" + "bb" and "ab" + "b" have equal sums; "a" + "bb" is found first.
        let equal =
            sample(&[("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.0), ("bb", -1.0)], false, &[]);
        assert_eq!(encode(&equal, "abb"), [1, 4]);
    }

    #[test]
    fn unknown_characters_become_one_token_or_bytes() {
        let model = sample(&TOKENS, false, &[]);
        assert_eq!(encode(&model, "xyaz"), [0, 1, 0]);
        let bytes = sample(&[("<unk>", 0.0), ("<0xC3>", -3.0), ("<0xA9>", -3.0)], true, &[]);
        assert_eq!(encode(&bytes, "é"), [1, 2]);
        assert_eq!(encode(&bytes, "è"), [0]);
    }

    #[test]
    fn special_tokens_are_never_produced_and_a_bad_unknown_token_is_refused() {
        assert_eq!(encode(&sample(&TOKENS, false, &[3]), "ab"), [1, 2]);
        let (_, table) = sample(&TOKENS, false, &[]);
        let parts = UnigramParts {
            vocabulary: Vocabulary { tokens: ["a"].into_iter().collect(), ids: vec![0] },
            scores: vec![0.0],
            unknown: Some(1),
            byte_fallback: false,
        };
        let error = Unigram::new(parts, &HashSet::new(), &table).err().expect("a bad id").to_string();
        assert_eq!(error, "unk_id is 1, which is not in the vocabulary of 1");
    }
}
