//! BPE with merges: the model inside most `tokenizer.json` files, by the `tokenizers` crate.

use std::collections::HashSet;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::{Error, Result};

/// A BPE model, ready to be built.
pub(super) struct BpeParts {
    pub vocabulary: Vec<(String, u32)>,
    /// Pairs of tokens, the first to be joined first.
    pub merges: Vec<(String, String)>,
    /// Stands for a character that is no token.
    pub unknown: Option<String>,
    /// Whether neighbouring unknown characters are one token.
    pub fuse_unknown: bool,
    /// Whether a character that is no token becomes its bytes, `<0xNN>`.
    pub byte_fallback: bool,
    /// Whether a word that is a token is taken whole.
    pub ignore_merges: bool,
}

/// Spellings that are looked for among hundreds of thousands of tokens: most of
/// these begin with another byte, which is seen without hashing them.
struct Spellings<'a> {
    spellings: &'a HashSet<String>,
    first_bytes: [bool; 256],
}

impl<'a> Spellings<'a> {
    fn of(spellings: &'a HashSet<String>) -> Spellings<'a> {
        let mut first_bytes = [false; 256];
        spellings
            .iter()
            .filter_map(|s| s.bytes().next())
            .for_each(|byte| first_bytes[usize::from(byte)] = true);
        Spellings { spellings, first_bytes }
    }

    /// Whether one of them may begin as `token` does; all begin as nothing does.
    fn may_begin(&self, token: &str) -> bool {
        token.bytes().next().is_none_or(|byte| self.first_bytes[usize::from(byte)])
    }

    fn contain(&self, token: &str) -> bool {
        self.may_begin(token) && self.spellings.contains(token)
    }
}

/// A BPE model of the library.
pub(super) struct Bpe(Box<BPE>);

impl Bpe {
    /// Builds the model. Text must never make one of the `special` tokens, so
    /// that these and their merges are left out.
    pub(super) fn new(mut parts: BpeParts, special: &HashSet<String>) -> Result<Bpe> {
        let unknown = parts.unknown.as_deref();
        let special = Spellings::of(special);
        parts.vocabulary.retain(|(token, _)| Some(token.as_str()) == unknown || !special.contain(token));
        let mut joined = String::new();
        parts.merges.retain(|(left, right)| {
            // What the two make begins as the left one does.
            if !special.may_begin(left) {
                return !special.contain(right);
            }
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            ![left, right, &joined].into_iter().any(|token| special.contain(token))
        });
        let mut builder = BPE::builder()
            .vocab_and_merges(parts.vocabulary.into_iter().collect::<Vocab>(), parts.merges)
            .fuse_unk(parts.fuse_unknown)
            .byte_fallback(parts.byte_fallback)
            .ignore_merges(parts.ignore_merges);
        if let Some(unknown) = parts.unknown {
            builder = builder.unk_token(unknown);
        }
        let bpe = builder
            .build()
            .map_err(|error| Error::new(format!("the merges do not fit the vocabulary: {error}")))?;
        match bpe.get_unk_token() {
            Some(unknown) if bpe.token_to_id(unknown).is_none() => {
                Err(Error::new(format!("the unknown token `{unknown}` is not in the vocabulary")))
            }
            _ => Ok(Bpe(Box::new(bpe))),
        }
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(&self, word: &str, ids: &mut Vec<u32>) -> Result<()> {
        let tokens = self.0.tokenize(word).map_err(|error| Error::new(format!("cannot encode: {error}")))?;
        // The library drops characters for which it has no token, without a word.
        if tokens.last().map_or(0, |token| token.offsets.1) != word.len() {
            return Err(Error::new(
                "the text has a character for which the vocabulary has no token, and there is no token for the unknown",
            ));
        }
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}
