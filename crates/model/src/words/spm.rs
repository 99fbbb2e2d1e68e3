//! SentencePiece's BPE with scores, as vocabularies inside GGUF files need it.
//!
//! The two neighbours whose joint text is the token of the highest score are
//! joined, the leftmost first among equals, until no neighbours make a token
//! (llama.cpp, `llm_tokenizer_spm`). A heap keeps this at n log n.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::{Error, Result};

/// The longest token that texts are joined to: it bounds the work for one
/// lookup. Real ones are below 100 bytes.
pub(super) const TOKEN_BYTES_MAX: usize = 1024;

/// A vocabulary with scores.
pub(super) struct Spm {
    tokens: HashMap<Box<str>, Scored>,
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    longest: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Scored {
    pub id: u32,
    pub score: f32,
}

/// A stretch of the text; an empty one has been joined to its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that make a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found: it is stale when they changed.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// `tokens` are those that text can make; `bytes` stand in for characters
    /// that are no token, and `unknown` where a byte is missing.
    pub(super) fn new(
        tokens: HashMap<Box<str>, Scored>,
        bytes: Box<[Option<u32>; 256]>,
        unknown: Option<u32>,
    ) -> Spm {
        let longest = tokens.keys().map(|token| token.len()).max().unwrap_or(0);
        Spm { tokens, bytes, unknown, longest }
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut symbols = symbols(text);
        let mut pairs = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            pairs.extend(self.pair(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = pairs.pop() {
            if !join(&mut symbols, &pair) {
                continue;
            }
            let Symbol { previous, next, .. } = symbols[pair.left];
            pairs.extend(self.pair(text, &symbols, previous, Some(pair.left)));
            pairs.extend(self.pair(text, &symbols, Some(pair.left), next));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.push_symbol(&text[symbol.start..symbol.start + symbol.len], ids)?;
        }
        Ok(())
    }

    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return None;
        }
        let token = self.tokens.get(&text[start..start + len])?;
        Some(Pair { score: token.score, left, right, len })
    }

    fn push_symbol(&self, symbol: &str, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(token) = self.tokens.get(symbol) {
            ids.push(token.id);
            return Ok(());
        }
        for byte in symbol.bytes() {
            let id = self.bytes[usize::from(byte)].or(self.unknown);
            ids.push(id.ok_or_else(|| {
                Error::new(format!(
                    "`{symbol}` is no token, and the vocabulary has neither a token for byte 0x{byte:02X} \
                     nor one for the unknown"
                ))
            })?);
        }
        Ok(())
    }
}

fn symbols(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(index, (start, char))| Symbol {
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

/// Joins a pair, unless one of the two has changed since it was found.
fn join(symbols: &mut [Symbol], pair: &Pair) -> bool {
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

    fn spm(tokens: &[(&str, f32)], unknown: Option<u32>) -> Spm {
        let scored = |(id, (token, score)): (usize, &(&str, f32))| {
            ((*token).into(), Scored { id: u32::try_from(id).expect("few tokens"), score: *score })
        };
        let mut bytes = Box::new([None; 256]);
        bytes[0xC3] = Some(100);
        Spm::new(tokens.iter().enumerate().map(scored).collect(), bytes, unknown)
    }

    fn encode(spm: &Spm, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        spm.encode(text, &mut ids).expect("every character has an id");
        ids
    }

    #[test]
    fn the_highest_score_is_joined_first_then_the_leftmost() {
        let vocabulary = [("a", -9.0), ("b", -9.0), ("ab", -2.0), ("ba", -1.0), ("aa", -3.0)];
        let spm = spm(&vocabulary, None);
        assert_eq!(encode(&spm, "aba"), [0, 3]);
        assert_eq!(encode(&spm, "aaa"), [4, 0]);
        assert_eq!(encode(&spm, ""), [] as [u32; 0]);
    }

    #[test]
    fn characters_without_a_token_become_bytes_or_the_unknown() {
        assert_eq!(encode(&spm(&[("a", 0.0)], Some(7)), "aé"), [0, 100, 7]);
        let error = spm(&[("a", 0.0)], None).encode("é", &mut Vec::new()).expect_err("no token");
        assert!(error.to_string().contains("0xA9"), "{error}");
    }
}
