//! The table of tokens: tokens by id and ids by token.
//!
//! Every start builds the table of hundreds of thousands of tokens, so all tokens
//! share one allocation. The hash keys are random, because a file could otherwise
//! choose tokens that collide.

use std::hash::BuildHasher;

use girih_file::Strings;
use girih_tensor::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashTable};

use super::short::short;
use crate::limits::TextLimits;

/// Tokens with their ids.
#[derive(Default)]
pub(super) struct Vocabulary {
    pub tokens: Strings,
    pub ids: Vec<u32>,
}

impl Vocabulary {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tokens.iter().zip(self.ids.iter().copied())
    }

    /// The id of `token`, by a linear search.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.iter().find(|(other, _)| *other == token).map(|(_, id)| id)
    }
}

/// Tokens by id and ids by token.
#[derive(Default)]
pub(super) struct TokenTable {
    /// All tokens, concatenated.
    text: String,
    ranges: Vec<TokenRange>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// The range of a token in the text.
#[derive(Clone, Copy, PartialEq)]
struct TokenRange {
    start: u32,
    end: u32,
}

impl TokenRange {
    /// The range of an id without a token.
    const NONE: TokenRange = TokenRange { start: u32::MAX, end: 0 };
}

impl TokenTable {
    /// An empty table with capacity for `tokens` tokens of `bytes` bytes in total.
    pub(super) fn with_capacity(tokens: usize, bytes: usize) -> TokenTable {
        TokenTable {
            text: String::with_capacity(bytes),
            ranges: Vec::with_capacity(tokens),
            ids: HashTable::with_capacity(tokens),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        let range = self.ranges.get(usize::try_from(id).ok()?)?;
        (*range != TokenRange::NONE).then(|| self.at(*range))
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(token), |&id| self.is_token(id, token)).copied()
    }

    /// The highest id, plus 1.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.ranges.len()).expect("ids are below the cap on vocabularies")
    }

    /// Whether the table has no tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds a token with its id; adding the same pair again has no effect.
    ///
    /// # Errors
    /// When the id exceeds the limit, or the table has another id for the token or
    /// another token for the id.
    pub(super) fn insert(&mut self, token: &str, id: u32, limits: &TextLimits) -> Result<()> {
        if id >= limits.vocabulary {
            let cap = limits.vocabulary;
            return Err(Error::new(format!("token `{}` has id {id}; ids must be below {cap}", short(token))));
        }
        if let Some(other) = self.token(id).filter(|other| *other != token) {
            return Err(Error::new(format!(
                "id {id} is given to `{}` and to `{}`; each token needs its own",
                short(other),
                short(token)
            )));
        }
        let hash = self.hasher.hash_one(token);
        if let Some(&other) = self.ids.find(hash, |&other| self.is_token(other, token)) {
            if other == id {
                return Ok(());
            }
            return Err(Error::new(format!(
                "token `{}` has the ids {other} and {id}; each token needs one",
                short(token)
            )));
        }
        self.append(token, id)?;
        let TokenTable { text, ranges, ids, hasher } = self;
        ids.insert_unique(hash, id, |&id| hasher.hash_one(part(text, ranges[id as usize])));
        Ok(())
    }

    /// Appends a new token to the text.
    fn append(&mut self, token: &str, id: u32) -> Result<()> {
        let index = usize::try_from(id).expect("the cap fits into memory");
        let end = |text: &String| u32::try_from(text.len()).ok();
        let start = end(&self.text);
        self.text.push_str(token);
        let (Some(start), Some(end)) = (start, end(&self.text)) else {
            return Err(Error::new("the tokens have more than 4 GiB of text, the maximum"));
        };
        if index >= self.ranges.len() {
            self.ranges.resize(index + 1, TokenRange::NONE);
        }
        self.ranges[index] = TokenRange { start, end };
        Ok(())
    }

    /// Whether the token of `id`, which must have one, is `token`.
    fn is_token(&self, id: u32, token: &str) -> bool {
        self.at(self.ranges[id as usize]) == token
    }

    fn at(&self, range: TokenRange) -> &str {
        part(&self.text, range)
    }
}

fn part(text: &str, range: TokenRange) -> &str {
    &text[range.start as usize..range.end as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_id_and_ids_by_token() {
        let mut table = TokenTable::with_capacity(2, 3);
        for (token, id) in [("b", 7), ("", 2), ("ab", 0), ("b", 7)] {
            table.insert(token, id, &TextLimits::DEFAULT).expect("ids are distinct");
        }
        assert_eq!((table.token(7), table.token(2), table.token(0)), (Some("b"), Some(""), Some("ab")));
        assert_eq!((table.token(1), table.token(8), table.len()), (None, None, 8));
        assert_eq!((table.id("b"), table.id(""), table.id("a")), (Some(7), Some(2), None));
    }

    #[test]
    fn a_second_id_or_token_is_refused() {
        let mut table = TokenTable::default();
        assert!(table.is_empty());
        table.insert("a", 1, &TextLimits::DEFAULT).expect("the table is empty");
        let refusal = |error: Result<()>| error.expect_err("it is in use").to_string();
        let other_token = refusal(table.insert("b", 1, &TextLimits::DEFAULT));
        assert_eq!(other_token, "id 1 is given to `a` and to `b`; each token needs its own");
        let other_id = refusal(table.insert("a", 2, &TextLimits::DEFAULT));
        assert_eq!(other_id, "token `a` has the ids 1 and 2; each token needs one");
        assert_eq!((table.id("a"), table.id("b"), table.token(2)), (Some(1), None, None));
    }

    #[test]
    fn many_tokens_are_all_found() {
        let mut table = TokenTable::default();
        let token = |id: u32| format!("t{}", id * 7919);
        (0..50_000)
            .for_each(|id| table.insert(&token(id), id, &TextLimits::DEFAULT).expect("tokens are distinct"));
        assert!(
            (0..50_000).all(|id| table.id(&token(id)) == Some(id) && table.token(id) == Some(&token(id)))
        );
    }
}
