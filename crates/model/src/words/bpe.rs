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

/// A BPE model of the library.
pub(super) struct Bpe(Box<BPE>);

impl Bpe {
    /// Builds the model. Text must never make one of the `special` tokens, so
    /// that these and their merges are left out.
    pub(super) fn new(mut parts: BpeParts, special: &HashSet<String>) -> Result<Bpe> {
        let unknown = parts.unknown.as_deref();
        parts.vocabulary.retain(|(token, _)| Some(token.as_str()) == unknown || !special.contains(token));
        if !special.is_empty() {
            let mut joined = String::new();
            parts.merges.retain(|(left, right)| {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                ![left, right, &joined].into_iter().any(|token| special.contains(token))
            });
        }
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
