//! Compares a GGUF file with the folder that it was made from: weights, facts, tokenizer and chat
//! template.
//!
//! Both are read through the same descriptions, so each weight has girih's name, order of rows and
//! transforms on both sides: what differs is the file's fault. Weights are read in bands of rows.

mod allowed;
mod conversations;
mod facts;
mod finding;
mod fit;
mod template;
mod texts;
mod tokens;
mod weights;

use std::num::NonZeroUsize;

use girih_file::ContainerKind;
use girih_model::ModelFiles;
use girih_tensor::{Error, ErrorKind, Result};
use girih_words::template::Renderer;
use girih_words::{TextLimits, TextProcessor};

use super::report::ConvertProgress;
pub(crate) use facts::first_difference;
pub use finding::{SourceFinding, SourcePart, SourceVerdict};

/// How a file is compared with its source.
#[derive(Debug)]
pub struct CompareOptions {
    /// The number of threads (does not affect the results).
    pub threads: NonZeroUsize,
    /// The caps on the tokenizer's files.
    pub limits: TextLimits,
}

/// Compares `file`, a GGUF, with `source`, the model in the folder that it was made from. Chat
/// templates are rendered by `renderer`.
///
/// # Errors
/// When these are no GGUF and no folder, or a file cannot be read.
pub fn compare_with_source(
    file: &ModelFiles,
    source: &ModelFiles,
    options: &CompareOptions,
    renderer: &mut Renderer,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<Vec<SourceFinding>> {
    let kinds = [file, source].map(|model| model.weights.container().kind());
    if kinds != [ContainerKind::Gguf, ContainerKind::Safetensors] || source.embedded().is_some() {
        let sentence =
            "a GGUF file is compared with the folder of safetensors that it was made from; name both";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut findings = facts::compare(file, source);
    findings.extend(weights::compare(file, source, options.threads, progress)?);
    findings.extend(compare_text(file, source, &options.limits, renderer));
    Ok(findings)
}

/// Compares the tokenizers and the chat templates.
fn compare_text(
    file: &ModelFiles,
    source: &ModelFiles,
    limits: &TextLimits,
    renderer: &mut Renderer,
) -> Vec<SourceFinding> {
    let alone = |verdict, detail| vec![SourceFinding::new(SourcePart::Tokenizer, "files", verdict, detail)];
    if !source.folder().join("tokenizer.json").exists() {
        return alone(SourceVerdict::NotCompared, "the folder has no tokenizer.json".to_owned());
    }
    let theirs = match TextProcessor::open(source.folder(), limits) {
        Ok(theirs) => theirs,
        Err(error) => {
            return alone(SourceVerdict::NotCompared, format!("the source's cannot be read: {error}"));
        }
    };
    let ours = match TextProcessor::of_gguf(file.weights.container().metadata(), limits) {
        Ok(ours) => ours,
        Err(error) => return alone(SourceVerdict::Differs, format!("the file's cannot be read: {error}")),
    };
    let mut findings = tokens::compare(&ours.tokenizer, &theirs.tokenizer, file.facts.sizes.vocabulary);
    findings.push(template::compare(&ours, &theirs, renderer));
    findings
}
