//! What a tokenizer consists of: one form for `tokenizer.json` and for the
//! vocabularies inside GGUF files, and the rules that both must keep.

use std::collections::HashSet;

use girih_file::Strings;
use girih_tensor::{Error, Result};

use super::added::{AddedToken, MAX_SPELLING_BYTES};
use super::bpe::{Bpe, BpeParts};
use super::decoding::Decoding;
use super::normalize::Normalization;
use super::split::PreTokenizerStep;
use super::spm::Spm;
use super::table::TokenTable;
use crate::limits::TextLimits;

/// The parts of one tokenizer.
pub(super) struct TokenizerParts {
    pub added: Vec<AddedToken>,
    /// Done to what stands between added tokens.
    pub normalization: Normalization,
    pub steps: Vec<PreTokenizerStep>,
    pub model: TokenizerModelParts,
    pub bos_eos: BosEosIds,
    pub decoding: Decoding,
    pub named: NamedTokens,
}

/// The part that turns words into ids.
pub(super) enum TokenizerModelParts {
    Bpe(BpeParts),
    /// A model with all its tokens by id.
    Spm(Spm, Strings),
}

/// The model, built.
pub(super) enum TokenizerModel {
    Bpe(Bpe),
    Spm(Spm),
}

/// The ids that open and close a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BosEosIds {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

/// The ids that have a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedTokens {
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// BosEos a sequence.
    pub eos: Option<u32>,
    /// Stands for what is no token.
    pub unk: Option<u32>,
    /// Fills up a batch.
    pub pad: Option<u32>,
}

impl TokenizerParts {
    /// Checks the ids of all parts against each other.
    pub(super) fn table(&self, limits: &TextLimits) -> Result<TokenTable> {
        let tokens = self.model.tokens();
        let mut table = TokenTable::with_capacity(tokens.len(), tokens.bytes());
        match &self.model {
            TokenizerModelParts::Bpe(bpe) => {
                for (token, id) in bpe.vocabulary.iter() {
                    table.enter(token, id, limits)?;
                }
            }
            TokenizerModelParts::Spm(_, tokens) => {
                for (id, token) in (0..).zip(tokens.iter()) {
                    table.enter(token, id, limits)?;
                }
            }
        }
        self.check_added()?;
        for token in &self.added {
            table.enter(&token.content, token.id, limits).map_err(|error| error.of("added tokens"))?;
        }
        if table.is_empty() {
            return Err(Error::new("the vocabulary is empty"));
        }
        self.check_references(&table)?;
        Ok(table)
    }

    fn check_added(&self) -> Result<()> {
        let mut ids = HashSet::new();
        for token in &self.added {
            if token.content.is_empty() {
                return Err(Error::new(format!("added token {} has no text", token.id)));
            }
            if token.content.len() > MAX_SPELLING_BYTES {
                return Err(Error::new(format!(
                    "added token {} has {} bytes; at most {MAX_SPELLING_BYTES} are taken",
                    token.id,
                    token.content.len()
                )));
            }
            if !ids.insert(token.id) {
                return Err(Error::new(format!("added token {} occurs twice", token.id)));
            }
        }
        Ok(())
    }

    fn check_references(&self, table: &TokenTable) -> Result<()> {
        let NamedTokens { bos, eos, unk, pad } = self.named;
        let named = [("BOS", bos), ("EOS", eos), ("unknown", unk), ("padding", pad)];
        let bos_eos =
            self.bos_eos.before.iter().chain(&self.bos_eos.after).map(|id| ("post-processor's", Some(*id)));
        for (name, id) in named.into_iter().chain(bos_eos) {
            if let Some(id) = id.filter(|id| table.token(*id).is_none()) {
                return Err(Error::new(format!(
                    "the {name} token has id {id}, which is not in the vocabulary of {}",
                    table.len()
                )));
            }
        }
        Ok(())
    }
}

impl TokenizerModelParts {
    /// The tokens of the vocabulary.
    fn tokens(&self) -> &Strings {
        match self {
            TokenizerModelParts::Bpe(bpe) => &bpe.vocabulary.tokens,
            TokenizerModelParts::Spm(_, tokens) => tokens,
        }
    }

    /// The model, whose tokens `table` holds and which never makes a `special` one.
    pub(super) fn build(self, special: &HashSet<u32>, table: &TokenTable) -> Result<TokenizerModel> {
        match self {
            TokenizerModelParts::Bpe(parts) => Ok(TokenizerModel::Bpe(Bpe::new(&parts, special, table)?)),
            TokenizerModelParts::Spm(spm, _) => Ok(TokenizerModel::Spm(spm)),
        }
    }
}

impl TokenizerModel {
    /// Appends the ids of `word`; `table` is the one that the model was built with.
    pub(super) fn encode(&self, word: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        match self {
            TokenizerModel::Bpe(bpe) => bpe.encode(word, table, ids),
            TokenizerModel::Spm(spm) => spm.encode(word, table, ids),
        }
    }
}
