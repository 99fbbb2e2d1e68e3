//! The parts of a tokenizer, in one form for `tokenizer.json` and for GGUF
//! vocabularies, and the checks that apply to both.

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
use super::unigram::{Unigram, UnigramParts};
use super::wordpiece::{WordPiece, WordPieceParts};
use crate::limits::TextLimits;

/// The parts of one tokenizer, not yet checked.
pub(super) struct TokenizerParts {
    pub added: Vec<AddedToken>,
    /// Applied to the text between added tokens.
    pub normalization: Normalization,
    pub steps: Vec<PreTokenizerStep>,
    pub model: TokenizerModelParts,
    pub bos_eos: BosEosIds,
    pub decoding: Decoding,
    pub named: NamedTokens,
}

/// The algorithm that turns words into ids, not yet built.
pub(super) enum TokenizerModelParts {
    Bpe(BpeParts),
    /// A model, and all its tokens by id.
    Spm(Spm, Strings),
    Unigram(UnigramParts),
    WordPiece(WordPieceParts),
}

/// The algorithm that turns words into ids.
pub(super) enum TokenizerModel {
    Bpe(Bpe),
    Spm(Spm),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

/// The ids that the post-processor puts before and after a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BosEosIds {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

/// The ids of tokens with a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedTokens {
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// Ends a sequence.
    pub eos: Option<u32>,
    /// Replaces text that has no token.
    pub unk: Option<u32>,
    /// Pads a batch.
    pub pad: Option<u32>,
}

impl TokenizerParts {
    /// Checks that the ids of all parts are consistent, and returns the table of
    /// all tokens.
    pub(super) fn table(&self, limits: &TextLimits) -> Result<TokenTable> {
        let tokens = self.model.tokens();
        let mut table = TokenTable::with_capacity(tokens.len(), tokens.bytes());
        match &self.model {
            TokenizerModelParts::Bpe(BpeParts { vocabulary, .. })
            | TokenizerModelParts::Unigram(UnigramParts { vocabulary, .. })
            | TokenizerModelParts::WordPiece(WordPieceParts { vocabulary, .. }) => {
                for (token, id) in vocabulary.iter() {
                    table.insert(token, id, limits)?;
                }
            }
            TokenizerModelParts::Spm(_, tokens) => {
                for (id, token) in (0..).zip(tokens.iter()) {
                    table.insert(token, id, limits)?;
                }
            }
        }
        self.check_added()?;
        for token in &self.added {
            table.insert(&token.content, token.id, limits).map_err(|error| error.of("added tokens"))?;
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
                    "added token {} has {} bytes; the maximum is {MAX_SPELLING_BYTES}",
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
    /// The id of the token that `tokenizer.json` names as unknown.
    pub(super) fn unknown_id(&self) -> Option<u32> {
        match self {
            TokenizerModelParts::Bpe(bpe) => bpe.vocabulary.id(bpe.unknown.as_ref()?),
            TokenizerModelParts::WordPiece(parts) => parts.vocabulary.id(&parts.unknown),
            TokenizerModelParts::Spm(spm, _) => spm.unknown,
            TokenizerModelParts::Unigram(parts) => parts.unknown,
        }
    }

    /// The tokens of the vocabulary.
    fn tokens(&self) -> &Strings {
        match self {
            TokenizerModelParts::Bpe(bpe) => &bpe.vocabulary.tokens,
            TokenizerModelParts::Spm(_, tokens) => tokens,
            TokenizerModelParts::Unigram(parts) => &parts.vocabulary.tokens,
            TokenizerModelParts::WordPiece(parts) => &parts.vocabulary.tokens,
        }
    }

    /// Builds the model. `table` contains its tokens; it never produces one of
    /// `special`.
    pub(super) fn build(self, special: &HashSet<u32>, table: &TokenTable) -> Result<TokenizerModel> {
        match self {
            TokenizerModelParts::Bpe(parts) => Ok(TokenizerModel::Bpe(Bpe::new(&parts, special, table)?)),
            TokenizerModelParts::Spm(spm, _) => Ok(TokenizerModel::Spm(spm)),
            TokenizerModelParts::Unigram(parts) => {
                Ok(TokenizerModel::Unigram(Unigram::new(parts, special, table)?))
            }
            TokenizerModelParts::WordPiece(parts) => {
                Ok(TokenizerModel::WordPiece(WordPiece::new(&parts, special, table)?))
            }
        }
    }
}

impl TokenizerModel {
    /// Appends the ids of `word`; `table` must be the one given to `build`.
    pub(super) fn encode(&self, word: &str, table: &TokenTable, ids: &mut Vec<u32>) -> Result<()> {
        match self {
            TokenizerModel::Bpe(bpe) => bpe.encode(word, table, ids),
            TokenizerModel::Spm(spm) => spm.encode(word, table, ids),
            TokenizerModel::Unigram(model) => model.encode(word, table, ids),
            TokenizerModel::WordPiece(model) => {
                model.encode(word, table, ids);
                Ok(())
            }
        }
    }
}
