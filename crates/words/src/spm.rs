//! SentencePiece's BPE with scores, for vocabularies of GGUF files.
//!
//! Merges the adjacent symbols that form the token of the highest score, the
//! leftmost first among equals, until no two form a token (llama.cpp,
//! `llm_tokenizer_spm`). A heap keeps the cost at O(n log n).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use girih_tensor::{Error, Result};

use super::table::TokenTable;

/// The maximum bytes of a token with a score, which bound the work per lookup.
/// Real ones have less than 100.
pub(super) const MAX_SCORED_TOKEN_BYTES: usize = 1024;

/// A vocabulary with scores. Its functions take the table of its tokens as an
/// argument.
pub(super) struct Spm {
    /// The scores by id; `None` for tokens that text cannot produce.
    pub scores: Vec<Option<f32>>,
    /// The tokens of bytes, which replace characters without a token.
    pub bytes: Box<[Option<u32>; 256]>,
    /// Replaces a byte without a token.
    pub unknown: Option<u32>,
    /// Bytes of the longest token with a score.
    pub longest: usize,
}

/// A range of the text; empty after it was merged into its left neighbour.
struct SpmSymbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two adjacent symbols that form a token.
struct ScoredPair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found; the pair is stale if they changed.
    len: usize,
}

impl Ord for ScoredPair {
    fn cmp(&self, other: &ScoredPair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for ScoredPair {
    fn partial_cmp(&self, other: &ScoredPair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScoredPair {
    fn eq(&self, other: &ScoredPair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScoredPair {}

impl Spm {
    /// The id and the score of a token that text can produce.
    fn scored(&self, token: &str, table: &TokenTable) -> Option<(u32, f32)> {
        let id = table.id(token)?;
        Some((id, (*self.scores.get(id as usize)?)?))
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        let mut symbols = symbols(text);
        let mut pairs = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            pairs.extend(self.pair(text, table, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = pairs.pop() {
            if !merge(&mut symbols, &pair) {
                continue;
            }
            let SpmSymbol { previous, next, .. } = symbols[pair.left];
            pairs.extend(self.pair(text, table, &symbols, previous, Some(pair.left)));
            pairs.extend(self.pair(text, table, &symbols, Some(pair.left), next));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.push_symbol(&text[symbol.start..symbol.start + symbol.len], table, ids)?;
        }
        Ok(())
    }

    fn pair(
        &self,
        text: &str,
        table: &TokenTable,
        symbols: &[SpmSymbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<ScoredPair> {
        let (left, right) = (left?, right?);
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return None;
        }
        let (_, score) = self.scored(&text[start..start + len], table)?;
        Some(ScoredPair { score, left, right, len })
    }

    fn push_symbol(&self, symbol: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        if let Some((id, _)) = self.scored(symbol, table) {
            ids.push(id);
            return Ok(());
        }
        for byte in symbol.bytes() {
            let id = self.bytes[usize::from(byte)].or(self.unknown);
            ids.push(id.ok_or_else(|| {
                Error::new(format!(
                    "`{symbol}` is not a token, and the vocabulary has neither a token for byte 0x{byte:02X} \
                     nor an unknown token"
                ))
            })?);
        }
        Ok(())
    }
}

fn symbols(text: &str) -> Vec<SpmSymbol> {
    let mut symbols: Vec<SpmSymbol> = text
        .char_indices()
        .enumerate()
        .map(|(index, (start, char))| SpmSymbol {
            start,
            len: char.len_utf8(),
            previous: index.checked_sub(1),
            next: Some(index + 1),
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    symbols
}

/// Merges a pair unless it is stale. Returns whether it did.
fn merge(symbols: &mut [SpmSymbol], pair: &ScoredPair) -> bool {
    let (left, right) = (symbols[pair.left].len, symbols[pair.right].len);
    if left == 0 || right == 0 || left + right != pair.len {
        return false;
    }
    symbols[pair.left].len = pair.len;
    symbols[pair.right].len = 0;
    let next = symbols[pair.right].next;
    symbols[pair.left].next = next;
    if let Some(next) = next {
        symbols[next].previous = Some(pair.left);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TextLimits;

    fn spm(tokens: &[(&str, f32)], unknown: Option<u32>) -> (Spm, TokenTable) {
        let mut table = TokenTable::default();
        for ((token, _), id) in tokens.iter().zip(0..) {
            table.insert(token, id, &TextLimits::DEFAULT).expect("tokens are distinct");
        }
        let mut bytes = Box::new([None; 256]);
        bytes[0xC3] = Some(100);
        let longest = tokens.iter().map(|(token, _)| token.len()).max().unwrap_or(0);
        let scores = tokens.iter().map(|(_, score)| Some(*score)).collect();
        (Spm { scores, bytes, unknown, longest }, table)
    }

    fn encode((spm, table): &(Spm, TokenTable), text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        spm.encode(text, table, &mut ids).expect("every character has an id");
        ids
    }

    #[test]
    fn the_highest_score_is_merged_first_then_the_leftmost() {
        let vocabulary = [("a", -9.0), ("b", -9.0), ("ab", -2.0), ("ba", -1.0), ("aa", -3.0)];
        let spm = spm(&vocabulary, None);
        assert_eq!(encode(&spm, "aba"), [0, 3]);
        assert_eq!(encode(&spm, "aaa"), [4, 0]);
        assert_eq!(encode(&spm, ""), [] as [u32; 0]);
    }

    #[test]
    fn characters_without_a_token_become_bytes_or_the_unknown_token() {
        assert_eq!(encode(&spm(&[("a", 0.0)], Some(7)), "aé"), [0, 100, 7]);
        let (spm, table) = spm(&[("a", 0.0)], None);
        let error = spm.encode("é", &table, &mut Vec::new()).expect_err("no token");
        assert!(error.to_string().contains("0xA9"), "{error}");
    }
}
