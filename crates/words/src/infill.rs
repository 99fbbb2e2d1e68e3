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
const ENDS: [&str; 9] = [
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "<|repo_name|>",
    "<repo_name>",
    "<reponame>",
];

/// The tokens before a repository's name and before a file's name, of Qwen Coder, StarCoder 2 and Granite Code.
const REPOSITORIES: [[&str; 2]; 3] =
    [["<|repo_name|>", "<|file_sep|>"], ["<repo_name>", "<file_sep>"], ["<reponame>", "<file_sep>"]];

/// The name of the repository and of the file with the gap, which no client tells: those of llama.cpp's
/// `format_prompt_infill` (`tools/server/server-common.cpp`).
const UNKNOWN_REPOSITORY: &str = "myproject\n";
const UNKNOWN_FILE: &str = "filename\n";

/// What stands before a text of another file, in a vocabulary without tokens for it, as in llama.cpp.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// A file whose text may help to fill in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillFile {
    /// Its name.
    pub name: String,
    /// Its text, or a part of it.
    pub text: String,
}

/// The prompt for the text between two others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Tokens that end the text, beside the model's own.
    pub stops: Vec<u32>,
}

impl TextProcessor {
    /// The prompt for the text between `before` and `after`, in a repository with other `files`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the vocabulary has no tokens for it.
    pub fn infill_prompt(&self, before: &str, after: &str, files: &[InfillFile]) -> Result<InfillPrompt> {
        let id = |spelling: &&str| self.tokenizer.id(spelling);
        let Some(spellings) = SPELLINGS.iter().find(|all| all.iter().all(|one| id(one).is_some())) else {
            let sentence = "the model cannot fill in text before a suffix: its vocabulary has no tokens for it, such as \
                            <|fim_prefix|>";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        let [first, last, middle] = spellings.map(|text| span(text, TextOrigin::Template));
        let gap = [first, span(before, TextOrigin::User), last, span(after, TextOrigin::User), middle];
        let spans: Vec<TextSpan> = self.file_spans(files).into_iter().chain(gap).collect();
        let tokens = self.tokenizer.encode_spans(&spans, BosEos::Add)?;
        Ok(InfillPrompt { tokens, stops: spellings.iter().chain(&ENDS).filter_map(id).collect() })
    }

    /// What stands before a gap: other files, and that another one begins then.
    fn file_spans(&self, files: &[InfillFile]) -> Vec<TextSpan> {
        let has = |spelling: &&str| self.tokenizer.id(spelling).is_some();
        let tokens = REPOSITORIES.iter().find(|all| all.iter().all(has)).filter(|_| !files.is_empty());
        let Some([repository, file]) = tokens else {
            let snippet = |file: &InfillFile| span(&format!("{SNIPPET}{}", file.text), TextOrigin::User);
            return files.iter().map(snippet).collect();
        };
        let mut spans =
            vec![span(repository, TextOrigin::Template), span(UNKNOWN_REPOSITORY, TextOrigin::User)];
        for InfillFile { name, text } in files {
            spans.push(span(file, TextOrigin::Template));
            spans.push(span(&format!("{name}\n{text}"), TextOrigin::User));
        }
        spans.extend([span(file, TextOrigin::Template), span(UNKNOWN_FILE, TextOrigin::User)]);
        spans
    }
}

fn span(text: &str, origin: TextOrigin) -> TextSpan {
    TextSpan { text: text.to_owned(), origin }
}
