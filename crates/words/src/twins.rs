//! Entry points of the tests that compare parts of tokenizers with the crate `tokenizers`
//! (`tests/twins`).

use std::collections::HashSet;
use std::ops::Range;

use girih_tensor::Result;

use crate::bert::BertRules;
use crate::bpe::{Bpe, BpeParts, Merges};
use crate::limits::TextLimits;
use crate::normalize::{Normalization, NormalizationForm, NormalizedText};
use crate::split::{PreTokenizerStep, pre_tokenize};
use crate::table::{TokenTable, Vocabulary};
use crate::wordpiece::{WordPiece, WordPieceParts};

/// A model and its tokens, which have consecutive ids.
struct SampleModel<M> {
    model: M,
    table: TokenTable,
}

fn parts_of(tokens: &[String]) -> Result<(Vocabulary, TokenTable)> {
    let mut table = TokenTable::default();
    for (token, id) in tokens.iter().zip(0..) {
        table.insert(token, id, &TextLimits::DEFAULT)?;
    }
    let ids = (0..table.len()).collect();
    Ok((Vocabulary { tokens: tokens.iter().collect(), ids }, table))
}

/// A BPE model.
pub struct BpeSample(SampleModel<Bpe>);

impl BpeSample {
    /// The model with these tokens and merges; the flags are `fuse_unk`, `byte_fallback` and
    /// `ignore_merges`.
    ///
    /// # Errors
    /// When a merge needs a token that is missing.
    pub fn new(
        tokens: &[String],
        merges: &[(String, String)],
        unknown: Option<String>,
        [fuse_unknown, byte_fallback, ignore_merges]: [bool; 3],
    ) -> Result<BpeSample> {
        let mut all = Merges::default();
        merges.iter().for_each(|(left, right)| all.push(left, right));
        let (vocabulary, table) = parts_of(tokens)?;
        let parts = BpeParts { vocabulary, merges: all, unknown, fuse_unknown, byte_fallback, ignore_merges };
        Ok(BpeSample(SampleModel { model: Bpe::new(&parts, &HashSet::new(), &table)?, table }))
    }

    /// The ids of a word.
    ///
    /// # Errors
    /// When a character has no token.
    pub fn encode(&self, word: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.0.model.encode(word, &self.0.table, &mut ids).map(|()| ids)
    }
}

/// A WordPiece model.
pub struct WordPieceSample(SampleModel<WordPiece>);

impl WordPieceSample {
    /// The model with these tokens. The first token is the unknown one.
    ///
    /// # Errors
    /// When the model is refused.
    pub fn new(tokens: &[String], prefix: &str, max_chars: usize) -> Result<WordPieceSample> {
        let (vocabulary, table) = parts_of(tokens)?;
        let unknown = tokens.first().cloned().unwrap_or_default();
        let parts = WordPieceParts { vocabulary, unknown, prefix: prefix.to_owned(), max_chars };
        Ok(WordPieceSample(SampleModel { model: WordPiece::new(&parts, &HashSet::new(), &table)?, table }))
    }

    /// The ids of a word.
    pub fn encode(&self, word: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.0.model.encode(word, &self.0.table, &mut ids);
        ids
    }
}

/// The words of BERT's pre-tokenizer.
pub fn bert_words(text: &str) -> Vec<String> {
    pre_tokenize(&[PreTokenizerStep::Bert], text.to_owned(), 1)
}

/// A step of a normalizer.
#[derive(Clone, Debug)]
pub enum NormalizerStep {
    /// A normalization form of Unicode.
    Nfc,
    /// As `Nfc`.
    Nfd,
    /// As `Nfc`.
    Nfkc,
    /// As `Nfc`.
    Nfkd,
    /// A text before the text.
    Prepend(String),
    /// Each occurrence of the first text becomes the second.
    Replace(String, String),
    /// `clean_text`, `handle_chinese_chars`, `strip_accents` and `lowercase` of BERT's normalizer.
    Bert([bool; 4]),
}

/// A normalizer.
pub struct NormalizerSample(Normalization);

impl NormalizerSample {
    /// The normalizer of these steps.
    ///
    /// # Errors
    /// When they lengthen a text too much.
    pub fn new(steps: &[NormalizerStep]) -> Result<NormalizerSample> {
        let mut all = Normalization::none();
        for step in steps {
            match step.clone() {
                NormalizerStep::Nfc => all.add_form(NormalizationForm::Nfc),
                NormalizerStep::Nfd => all.add_form(NormalizationForm::Nfd),
                NormalizerStep::Nfkc => all.add_form(NormalizationForm::Nfkc),
                NormalizerStep::Nfkd => all.add_form(NormalizationForm::Nfkd),
                NormalizerStep::Prepend(text) => all.add_prepend(text),
                NormalizerStep::Replace(text, content) => all.add_replace(text, content),
                NormalizerStep::Bert([clean_text, handle_chinese_chars, strip_accents, lowercase]) => {
                    all.add_bert(BertRules { clean_text, handle_chinese_chars, strip_accents, lowercase })
                }
            }?;
        }
        Ok(NormalizerSample(all))
    }

    /// Rewrites a text.
    ///
    /// # Errors
    /// When the result would be too long.
    pub fn apply(&self, text: &str) -> Result<NormalizedSample> {
        self.0.apply(text).map(NormalizedSample)
    }
}

/// A rewritten text.
pub struct NormalizedSample(NormalizedText);

impl NormalizedSample {
    /// The text.
    pub fn text(&self) -> &str {
        self.0.text()
    }

    /// The bytes of the source that bytes of the text come from.
    pub fn source_range(&self, range: Range<usize>) -> Option<Range<usize>> {
        self.0.source_range(range)
    }
}
