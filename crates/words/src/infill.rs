//! Prompts for the text between two others (fill in the middle), for models whose vocabulary has tokens for it.

use girih_tensor::{Error, ErrorKind, Result};

use crate::processor::TextProcessor;
use crate::span::{TextOrigin, TextSpan};
use crate::tokenizer::BosEos;

/// The tokens before the text that comes first, before the text that comes last, and before the middle: those that
/// llama.cpp knows (`src/llama-vocab.cpp`), except the ones of Code Llama, whose spaces differ.
const SPELLINGS: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<|prefix|>", "<|suffix|>", "<|middle|>"],
];

/// Tokens that end the middle, beside those of [`SPELLINGS`]: padding, and the beginning of another file.
const ENDS: [&str; 8] = [
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "<|repo_name|>",
    "<reponame>",
];

/// The prompt for the text between two others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Tokens that end the text, beside the model's own.
    pub stops: Vec<u32>,
}

impl TextProcessor {
    /// The prompt for the text between `before` and `after`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the vocabulary has no tokens for it.
    pub fn infill_prompt(&self, before: &str, after: &str) -> Result<InfillPrompt> {
        let id = |spelling: &&str| self.tokenizer.id(spelling);
        let Some(spellings) = SPELLINGS.iter().find(|all| all.iter().all(|one| id(one).is_some())) else {
            let sentence = "the model cannot fill in text before a suffix: its vocabulary has no tokens for it, such as \
                            <|fim_prefix|>";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        let [first, last, middle] = spellings.map(|text| span(text, TextOrigin::Template));
        let spans = [first, span(before, TextOrigin::User), last, span(after, TextOrigin::User), middle];
        let tokens = self.tokenizer.encode_spans(&spans, BosEos::Add)?;
        Ok(InfillPrompt { tokens, stops: spellings.iter().chain(&ENDS).filter_map(id).collect() })
    }
}

fn span(text: &str, origin: TextOrigin) -> TextSpan {
    TextSpan { text: text.to_owned(), origin }
}
