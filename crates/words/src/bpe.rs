//! BPE with merges: the model of most `tokenizer.json` files, and of GGUF files
//! with byte-level vocabularies.
//!
//! Adjacent symbols are merged by the applicable merge of the lowest rank, the
//! leftmost first, until no merge applies (Sennrich et al. 2016, section 3.2); a
//! heap keeps the cost at O(n log n). The `tokenizers` crate defines the ids, and
//! tests compare with it; building its model takes four allocations and half a
//! microsecond per merge.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::hash::BuildHasher;

use girih_file::Strings;
use girih_tensor::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashTable};

use super::short::short;
use super::table::{TokenTable, Vocabulary};

/// The parts of a BPE model, not yet built.
pub(super) struct BpeParts {
    pub vocabulary: Vocabulary,
    pub merges: Merges,
    /// The token that replaces characters without a token (`unk_token`).
    pub unknown: Option<String>,
    /// Whether adjacent unknown characters become one unknown token (`fuse_unk`).
    pub fuse_unknown: bool,
    /// Whether a character without a token becomes the tokens of its bytes, `<0xNN>`.
    pub byte_fallback: bool,
    /// Whether a word that is a token becomes that token without merging.
    pub ignore_merges: bool,
}

/// Pairs of tokens in order of rank: the first is merged first.
#[derive(Default)]
pub(super) struct Merges {
    /// The left and the right token of each.
    sides: Strings,
}

impl Merges {
    pub(super) fn push(&mut self, left: &str, right: &str) {
        self.sides.push(left);
        self.sides.push(right);
    }

    pub(super) fn len(&self) -> usize {
        self.sides.len() / 2
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let side = |index| self.sides.get(index).expect("each merge has two sides");
        (0..self.len()).map(move |merge| (side(2 * merge), side(2 * merge + 1)))
    }
}

/// A merge by ids: the two sides and the merged token.
#[derive(Clone, Copy)]
struct MergeRule {
    sides: (u32, u32),
    id: u32,
}

/// The merges by their sides; the rank of a merge is its index.
#[derive(Default)]
struct MergeRules {
    ranked: Vec<MergeRule>,
    ranks: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl MergeRules {
    fn with_capacity(count: usize) -> MergeRules {
        MergeRules {
            ranked: Vec::with_capacity(count),
            ranks: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Appends a rule, which replaces an earlier one with the same sides.
    fn push(&mut self, rule: MergeRule) -> Result<()> {
        let rank = u32::try_from(self.ranked.len());
        let rank = rank.map_err(|_| Error::new("there are 2^32 or more merges; the maximum is 2^32 - 1"))?;
        self.ranked.push(rule);
        let MergeRules { ranked, ranks, hasher } = self;
        let sides = |rank: u32| ranked[rank as usize].sides;
        let entry = ranks.entry(
            hasher.hash_one(rule.sides),
            |&other| sides(other) == rule.sides,
            |&other| hasher.hash_one(sides(other)),
        );
        *entry.or_insert(rank).get_mut() = rank;
        Ok(())
    }

    /// The rank and the merged token of the rule with these sides.
    fn get(&self, sides: (u32, u32)) -> Option<(u32, u32)> {
        let is_it = |&rank: &u32| self.ranked[rank as usize].sides == sides;
        let rank = *self.ranks.find(self.hasher.hash_one(sides), is_it)?;
        Some((rank, self.ranked[rank as usize].id))
    }
}

/// A BPE model. Its functions take the table of its tokens as an argument.
pub(super) struct Bpe {
    /// By id: whether text can produce the token.
    reachable: Vec<bool>,
    rules: MergeRules,
    unknown: Option<u32>,
    fuse_unknown: bool,
    /// The token of each byte, if characters may become bytes.
    bytes: Option<Box<[Option<u32>; 256]>>,
    ignore_merges: bool,
}

/// A token of a word, or no token after it was merged into its left neighbour.
struct BpeSymbol {
    id: Option<u32>,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Bpe {
    /// Builds the model of `parts`; `table` contains its tokens. Merges of
    /// `special` tokens are left out, because text must never produce these.
    pub(super) fn new(parts: &BpeParts, special: &HashSet<u32>, table: &TokenTable) -> Result<Bpe> {
        let unknown = match &parts.unknown {
            None => None,
            Some(token) => Some(parts.vocabulary.id(token).ok_or_else(|| {
                Error::new(format!("the unknown token `{token}` is not in the vocabulary"))
            })?),
        };
        let mut reachable = vec![false; table.len() as usize];
        for &id in &parts.vocabulary.ids {
            reachable[id as usize] = Some(id) == unknown || !special.contains(&id);
        }
        let mut bpe = Bpe {
            reachable,
            rules: MergeRules::with_capacity(parts.merges.len()),
            unknown,
            fuse_unknown: parts.fuse_unknown,
            bytes: None,
            ignore_merges: parts.ignore_merges,
        };
        if parts.byte_fallback {
            let token = |byte: usize| bpe.id(&format!("<0x{byte:02X}>"), table);
            bpe.bytes = Some(Box::new(std::array::from_fn(token)));
        }
        bpe.add_rules(&parts.merges, special, table)?;
        Ok(bpe)
    }

    /// Adds the merges, except those of `special` tokens.
    fn add_rules(&mut self, merges: &Merges, special: &HashSet<u32>, table: &TokenTable) -> Result<()> {
        let mut joined = String::new();
        // Most lists are in the order of the merged tokens' ids.
        let mut last = 0_u32;
        for (left, right) in merges.iter() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let near =
                [last, last.saturating_add(1)].into_iter().find(|&id| table.token(id) == Some(&joined));
            let made = near.or_else(|| table.id(&joined));
            let all = [(left, table.id(left)), (right, table.id(right)), (joined.as_str(), made)];
            if all.iter().any(|(_, id)| id.is_some_and(|id| special.contains(&id))) {
                continue;
            }
            let known = |(token, id): (&str, Option<u32>)| {
                id.filter(|&id| self.reachable[id as usize]).ok_or_else(|| {
                    let token = short(token);
                    Error::new(format!("a merge needs token `{token}`, which is not in the vocabulary"))
                })
            };
            let [left, right, made] = all.map(known);
            let rule = MergeRule { sides: (left?, right?), id: made? };
            last = rule.id;
            self.rules.push(rule)?;
        }
        Ok(())
    }

    /// The id of a token that text can produce.
    fn id(&self, token: &str, table: &TokenTable) -> Option<u32> {
        table.id(token).filter(|&id| self.reachable[id as usize])
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(id) = self.id(word, table).filter(|_| self.ignore_merges && !word.is_empty()) {
            ids.push(id);
            return Ok(());
        }
        let mut symbols = self.symbols(word, table)?;
        self.merge(&mut symbols);
        ids.extend(symbols.iter().filter_map(|symbol| symbol.id));
        Ok(())
    }

    /// The characters of `word` as tokens, tokens of bytes, or the unknown token.
    fn symbols(&self, word: &str, table: &TokenTable) -> Result<Vec<BpeSymbol>> {
        let mut ids = Vec::with_capacity(word.len());
        // The unknown token is appended at the end of a run of unknown characters.
        let mut is_unknown = false;
        let mut buffer = [0; 4];
        for char in word.chars() {
            let spelled = char.encode_utf8(&mut buffer);
            if let Some(id) = self.id(spelled, table) {
                ids.extend(self.unknown.filter(|_| is_unknown));
                is_unknown = false;
                ids.push(id);
            } else if let Some(bytes) = self.bytes_of(spelled) {
                ids.extend(bytes);
            } else if let Some(unknown) = self.unknown {
                if is_unknown && !self.fuse_unknown {
                    ids.push(unknown);
                }
                is_unknown = true;
            } else {
                return Err(Error::new(
                    "a character of the text has no token, and the vocabulary has no unknown token",
                ));
            }
        }
        ids.extend(self.unknown.filter(|_| is_unknown));
        let count = ids.len();
        let symbol = |(index, id)| BpeSymbol {
            id: Some(id),
            previous: usize::checked_sub(index, 1),
            next: Some(index + 1).filter(|&next| next < count),
        };
        Ok(ids.into_iter().enumerate().map(symbol).collect())
    }

    /// The tokens of a character's bytes, if every byte has one.
    fn bytes_of(&self, char: &str) -> Option<impl Iterator<Item = u32>> {
        let bytes = self.bytes.as_ref()?;
        let ids = || char.bytes().map(|byte| bytes[usize::from(byte)]);
        ids().all(|id| id.is_some()).then(|| ids().flatten())
    }

    /// Merges adjacent symbols until no merge applies.
    fn merge(&self, symbols: &mut [BpeSymbol]) {
        let mut found = BinaryHeap::with_capacity(symbols.len());
        let indices = 0..symbols.len().saturating_sub(1);
        found.extend(indices.filter_map(|index| self.candidate(symbols, index).map(Reverse)));
        while let Some(Reverse((_, index, made))) = found.pop() {
            // A neighbour may have changed since the candidate was found.
            if self.candidate(symbols, index).is_none_or(|(_, _, now)| now != made) {
                continue;
            }
            let right = symbols[index].next.expect("a candidate has a right side");
            let next = symbols[right].next;
            symbols[right].id = None;
            symbols[index].id = Some(made);
            symbols[index].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(index);
            }
            let changed = [symbols[index].previous, Some(index)].into_iter().flatten();
            found.extend(changed.filter_map(|index| self.candidate(symbols, index).map(Reverse)));
        }
    }

    /// The merge of a symbol and its right neighbour: rank, index of the symbol,
    /// and merged token.
    fn candidate(&self, symbols: &[BpeSymbol], index: usize) -> Option<(u32, usize, u32)> {
        let symbol = &symbols[index];
        let (rank, made) = self.rules.get((symbol.id?, symbols[symbol.next?].id?))?;
        Some((rank, index, made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TextLimits;

    /// A model whose tokens are a few letters and all results of its merges.
    struct Sample {
        tokens: Vec<String>,
        merges: Vec<(String, String)>,
    }

    impl Sample {
        fn table(&self) -> TokenTable {
            let mut table = TokenTable::default();
            for (token, id) in self.tokens.iter().zip(0..) {
                table.insert(token, id, &TextLimits::DEFAULT).expect("tokens are distinct");
            }
            table
        }

        fn ours(&self, special: &[u32], table: &TokenTable) -> Result<Bpe> {
            let mut merges = Merges::default();
            self.merges.iter().for_each(|(left, right)| merges.push(left, right));
            let ids = (0..table.len()).collect();
            let vocabulary = Vocabulary { tokens: self.tokens.iter().collect(), ids };
            let parts = BpeParts {
                vocabulary,
                merges,
                unknown: None,
                fuse_unknown: false,
                byte_fallback: false,
                ignore_merges: false,
            };
            Bpe::new(&parts, &special.iter().copied().collect(), table)
        }
    }

    fn sample(merges: &[(&str, &str)]) -> Sample {
        let owned = |(left, right): &(&str, &str)| ((*left).to_owned(), (*right).to_owned());
        Sample {
            tokens: ["a", "b", "ab", "aba"].map(str::to_owned).to_vec(),
            merges: merges.iter().map(owned).collect(),
        }
    }

    #[test]
    fn special_tokens_are_never_produced() {
        let sample = sample(&[("a", "b"), ("ab", "a")]);
        let table = sample.table();
        let ids = |special: &[u32]| {
            let bpe = sample.ours(special, &table).expect("merges of special tokens are left out");
            let mut ids = Vec::new();
            bpe.encode("aba", &table, &mut ids).map(|()| ids)
        };
        assert_eq!(ids(&[]).unwrap(), [3]);
        assert_eq!(ids(&[3]).unwrap(), [2, 0]);
        assert_eq!(ids(&[2]).unwrap(), [0, 1, 0]);
        assert!(ids(&[0]).unwrap_err().to_string().contains("no token"));
    }

    #[test]
    fn a_merge_of_a_missing_token_is_refused() {
        for (sides, missing) in [(("a", "c"), "c"), (("c", "a"), "c"), (("b", "a"), "ba")] {
            let sample = sample(&[sides]);
            let error = sample.ours(&[], &sample.table()).err().expect("a token is missing").to_string();
            let expected = format!("a merge needs token `{missing}`, which is not in the vocabulary");
            assert_eq!(error, expected);
        }
    }
}
