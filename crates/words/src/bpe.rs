//! BPE with merges: the model inside most `tokenizer.json` files, and inside
//! GGUF files with byte-level vocabularies.
//!
//! Two neighbours for which there is a merge are joined, those of the earliest
//! merge first and the leftmost among equals, until there are none (Sennrich et
//! al. 2016, section 3.2); a heap keeps this at n log n. Which ids come out is
//! defined by the `tokenizers` crate, with which the tests compare; its own
//! model takes four allocations and half a microsecond for each merge.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::hash::BuildHasher;

use girih_file::Strings;
use girih_tensor::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashTable};

use super::short::short;
use super::table::Table;

/// A BPE model, ready to be built.
pub(super) struct BpeParts {
    pub vocabulary: Vocabulary,
    pub merges: Merges,
    /// Stands for a character that is no token.
    pub unknown: Option<String>,
    /// Whether neighbouring unknown characters are one token.
    pub fuse_unknown: bool,
    /// Whether a character that is no token becomes its bytes, `<0xNN>`.
    pub byte_fallback: bool,
    /// Whether a word that is a token is taken whole.
    pub ignore_merges: bool,
}

/// Tokens, and the id of each.
#[derive(Default)]
pub(super) struct Vocabulary {
    pub tokens: Strings,
    pub ids: Vec<u32>,
}

impl Vocabulary {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tokens.iter().zip(self.ids.iter().copied())
    }

    /// The id of `token`, by a look at each.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.iter().find(|(other, _)| *other == token).map(|(_, id)| id)
    }
}

/// Pairs of tokens, the first to be joined first.
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

/// A merge whose tokens are known: the two sides, and what they make.
#[derive(Clone, Copy)]
struct Joint {
    sides: (u32, u32),
    id: u32,
}

/// The joints, by their sides; a joint's place is its rank.
#[derive(Default)]
struct Joints {
    ranked: Vec<Joint>,
    ranks: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Joints {
    fn with_capacity(count: usize) -> Joints {
        Joints {
            ranked: Vec::with_capacity(count),
            ranks: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Appends a joint; of two with the same sides the later one counts.
    fn push(&mut self, joint: Joint) -> Result<()> {
        let rank = u32::try_from(self.ranked.len());
        let rank = rank.map_err(|_| Error::new("there are 2^32 merges or more; fewer are taken"))?;
        self.ranked.push(joint);
        let Joints { ranked, ranks, hasher } = self;
        let sides = |rank: u32| ranked[rank as usize].sides;
        let entry = ranks.entry(
            hasher.hash_one(joint.sides),
            |&other| sides(other) == joint.sides,
            |&other| hasher.hash_one(sides(other)),
        );
        *entry.or_insert(rank).get_mut() = rank;
        Ok(())
    }

    /// The rank of the joint with these sides, and what it makes.
    fn get(&self, sides: (u32, u32)) -> Option<(u32, u32)> {
        let is_it = |&rank: &u32| self.ranked[rank as usize].sides == sides;
        let rank = *self.ranks.find(self.hasher.hash_one(sides), is_it)?;
        Some((rank, self.ranked[rank as usize].id))
    }
}

/// A BPE model. Its tokens' spellings are in a table that is handed in.
pub(super) struct Bpe {
    /// Whether text can make the token of an id.
    reachable: Vec<bool>,
    joints: Joints,
    unknown: Option<u32>,
    fuse_unknown: bool,
    /// The token of each byte, where characters become bytes.
    bytes: Option<Box<[Option<u32>; 256]>>,
    ignore_merges: bool,
}

/// A token of a word; it has no id once it was joined to its left neighbour.
struct Symbol {
    id: Option<u32>,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Bpe {
    /// Builds the model of `parts`, whose tokens `table` holds. Text must never
    /// make one of the `special` tokens, so that their merges are left out.
    pub(super) fn new(parts: &BpeParts, special: &HashSet<u32>, table: &Table) -> Result<Bpe> {
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
            joints: Joints::with_capacity(parts.merges.len()),
            unknown,
            fuse_unknown: parts.fuse_unknown,
            bytes: None,
            ignore_merges: parts.ignore_merges,
        };
        if parts.byte_fallback {
            let token = |byte: usize| bpe.id(&format!("<0x{byte:02X}>"), table);
            bpe.bytes = Some(Box::new(std::array::from_fn(token)));
        }
        bpe.join(&parts.merges, special, table)?;
        Ok(bpe)
    }

    /// Enters the merges, but those of `special` tokens.
    fn join(&mut self, merges: &Merges, special: &HashSet<u32>, table: &Table) -> Result<()> {
        let mut joined = String::new();
        // Most lists are in the order of the tokens that the merges make.
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
                    Error::new(format!(
                        "the merges do not fit the vocabulary: Token `{token}` out of vocabulary"
                    ))
                })
            };
            let [left, right, made] = all.map(known);
            let joint = Joint { sides: (left?, right?), id: made? };
            last = joint.id;
            self.joints.push(joint)?;
        }
        Ok(())
    }

    /// The id of a token that text can make.
    fn id(&self, token: &str, table: &Table) -> Option<u32> {
        table.id(token).filter(|&id| self.reachable[id as usize])
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &str, table: &Table, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(id) = self.id(word, table).filter(|_| self.ignore_merges && !word.is_empty()) {
            ids.push(id);
            return Ok(());
        }
        let mut symbols = self.symbols(word, table)?;
        self.merge(&mut symbols);
        ids.extend(symbols.iter().filter_map(|symbol| symbol.id));
        Ok(())
    }

    /// The characters of `word`, each as its token, its bytes or the unknown.
    fn symbols(&self, word: &str, table: &Table) -> Result<Vec<Symbol>> {
        let mut ids = Vec::with_capacity(word.len());
        // The unknown token comes when the run of characters that it stands for has ended.
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
                    "the text has a character for which the vocabulary has no token, and there is no token for the unknown",
                ));
            }
        }
        ids.extend(self.unknown.filter(|_| is_unknown));
        let count = ids.len();
        let symbol = |(place, id)| Symbol {
            id: Some(id),
            previous: usize::checked_sub(place, 1),
            next: Some(place + 1).filter(|&next| next < count),
        };
        Ok(ids.into_iter().enumerate().map(symbol).collect())
    }

    /// The tokens of a character's bytes, if each has one.
    fn bytes_of(&self, char: &str) -> Option<impl Iterator<Item = u32>> {
        let bytes = self.bytes.as_ref()?;
        let ids = || char.bytes().map(|byte| bytes[usize::from(byte)]);
        ids().all(|id| id.is_some()).then(|| ids().flatten())
    }

    /// Joins neighbours until there is no merge for any.
    fn merge(&self, symbols: &mut [Symbol]) {
        let mut found = BinaryHeap::with_capacity(symbols.len());
        let places = 0..symbols.len().saturating_sub(1);
        found.extend(places.filter_map(|place| self.joint(symbols, place).map(Reverse)));
        while let Some(Reverse((_, place, made))) = found.pop() {
            // A neighbour may have changed since the joint was found.
            if self.joint(symbols, place).is_none_or(|(_, _, now)| now != made) {
                continue;
            }
            let right = symbols[place].next.expect("a joint has a right side");
            let next = symbols[right].next;
            symbols[right].id = None;
            symbols[place].id = Some(made);
            symbols[place].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(place);
            }
            let changed = [symbols[place].previous, Some(place)].into_iter().flatten();
            found.extend(changed.filter_map(|place| self.joint(symbols, place).map(Reverse)));
        }
    }

    /// The joint of a symbol and its right neighbour: its rank, its place, and
    /// what it makes.
    fn joint(&self, symbols: &[Symbol], place: usize) -> Option<(u32, usize, u32)> {
        let symbol = &symbols[place];
        let (rank, made) = self.joints.get((symbol.id?, symbols[symbol.next?].id?))?;
        Some((rank, place, made))
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;
    use tokenizers::Model as _;
    use tokenizers::models::bpe::{BPE, Vocab};

    use super::*;
    use crate::limits::Limits;

    /// A model of all strings that the merges make of `letters`.
    struct Sample {
        tokens: Vec<String>,
        merges: Vec<(String, String)>,
        unknown: Option<String>,
        flags: [bool; 3],
    }

    impl Sample {
        /// `random` yields a number below the one that it is given.
        fn random(random: &mut impl FnMut(usize) -> usize) -> Sample {
            let mut tokens: Vec<String> = ["a", "b", "é", "ŋ"].map(str::to_owned)[..2 + random(3)].to_vec();
            let mut merges = Vec::new();
            for _ in 0..random(24) {
                let sides = (tokens[random(tokens.len())].clone(), tokens[random(tokens.len())].clone());
                let joined = format!("{}{}", sides.0, sides.1);
                if !tokens.contains(&joined) {
                    tokens.push(joined);
                }
                // The same merge may come twice.
                merges.push(sides);
            }
            let bytes = ["<0xC3>", "<0xA9>", "<0xC5>"].map(str::to_owned);
            tokens.extend(bytes.into_iter().take(random(4)));
            let unknown = (random(2) == 0).then(|| "?".to_owned());
            tokens.extend(unknown.clone());
            Sample { tokens, merges, unknown, flags: [(); 3].map(|()| random(2) == 0) }
        }

        fn table(&self) -> Table {
            let mut table = Table::default();
            for (token, id) in self.tokens.iter().zip(0..) {
                table.enter(token, id, &Limits::DEFAULT).expect("no token is there twice");
            }
            table
        }

        fn ours(&self, special: &[u32], table: &Table) -> Result<Bpe> {
            let [fuse_unknown, byte_fallback, ignore_merges] = self.flags;
            let mut merges = Merges::default();
            self.merges.iter().for_each(|(left, right)| merges.push(left, right));
            let ids = (0..table.len()).collect();
            let vocabulary = Vocabulary { tokens: self.tokens.iter().collect(), ids };
            let unknown = self.unknown.clone();
            let parts = BpeParts { vocabulary, merges, unknown, fuse_unknown, byte_fallback, ignore_merges };
            Bpe::new(&parts, &special.iter().copied().collect(), table)
        }

        fn theirs(&self) -> BPE {
            let [fuse_unknown, byte_fallback, ignore_merges] = self.flags;
            let vocabulary: Vocab = self.tokens.iter().cloned().zip(0..).collect();
            let mut builder = BPE::builder()
                .vocab_and_merges(vocabulary, self.merges.clone())
                .fuse_unk(fuse_unknown)
                .byte_fallback(byte_fallback)
                .ignore_merges(ignore_merges);
            if let Some(unknown) = &self.unknown {
                builder = builder.unk_token(unknown.clone());
            }
            builder.build().expect("every merge makes a token")
        }
    }

    /// Random words, encoded by `Bpe` and by the library.
    fn compare(seed: u64) {
        let mut generator = Random(seed);
        let mut random = move |end: usize| generator.below(end);
        let sample = Sample::random(&mut random);
        let (table, theirs) = (sample.table(), sample.theirs());
        let ours = sample.ours(&[], &table).expect("the library takes it");
        for _ in 0..20 {
            let word: String = (0..random(12)).map(|_| ["a", "b", "é", "ŋ", "?"][random(5)]).collect();
            let tokens = theirs.tokenize(&word).expect("the unknown token is a token");
            let is_whole = tokens.last().map_or(0, |token| token.offsets.1) == word.len();
            let mut ids = Vec::new();
            let outcome = ours.encode(&word, &table, &mut ids);
            assert_eq!(outcome.is_ok(), is_whole, "seed {seed}: {word:?}");
            if is_whole {
                let theirs: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                assert_eq!(ids, theirs, "seed {seed}: {word:?} of {:?}, {:?}", sample.tokens, sample.merges);
            }
        }
    }

    #[test]
    fn random_models_give_the_ids_of_the_library() {
        (0..3000).for_each(compare);
    }

    fn sample(merges: &[(&str, &str)]) -> Sample {
        let owned = |(left, right): &(&str, &str)| ((*left).to_owned(), (*right).to_owned());
        Sample {
            tokens: ["a", "b", "ab", "aba"].map(str::to_owned).to_vec(),
            merges: merges.iter().map(owned).collect(),
            unknown: None,
            flags: [false; 3],
        }
    }

    #[test]
    fn special_tokens_are_never_made() {
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
    fn a_merge_of_what_is_no_token_is_refused() {
        for (sides, missing) in [(("a", "c"), "c"), (("c", "a"), "c"), (("b", "a"), "ba")] {
            let sample = sample(&[sides]);
            let error = sample.ours(&[], &sample.table()).err().expect("a token is missing").to_string();
            let wanted = format!("the merges do not fit the vocabulary: Token `{missing}` out of vocabulary");
            assert_eq!(error, wanted);
        }
    }
}
