//! Golden files: the outputs of transformers for a few prompts.
//!
//! A golden is a safetensors file with, for each prompt `I` and each precision
//! `P` (`f32`, `bf16`): `pI.input_ids [T]`, `pI.hidden_P [L+1, T, D]` (the
//! embeddings, then the output of each layer, the last one after the final
//! norm), `pI.logits_P [T, V]`, `pI.greedy_P [N]` (the greedy continuation),
//! `pI.margin_P [N]` (the difference between the two largest logits) and
//! `pI.step_top5_P [N, 5]` (the ids of the five largest logits of each step).
//! `scripts/make_golden.py` writes one from any model that transformers runs.

use std::path::Path;

use crate::golden_file::{GoldenFile, GoldenKind, GoldenSizes};
use crate::{Error, GoldenPrecision, Result};

/// The prompts of a golden file, at one precision.
#[derive(Debug)]
pub struct Golden {
    /// The prompts in the order of the file.
    pub prompts: Vec<GoldenPrompt>,
}

/// One prompt and the outputs of transformers for it.
#[derive(Debug)]
pub struct GoldenPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The outputs for them.
    pub reference: ReferenceOutputs,
}

/// The outputs of transformers for a prompt.
#[derive(Debug)]
pub struct ReferenceOutputs {
    /// The hidden states, each `[T, D]`, row after row.
    pub hidden: Vec<Vec<f32>>,
    /// The hidden size.
    pub width: usize,
    /// `[T, V]`, row after row.
    pub logits: Vec<f32>,
    /// The number of logits of a row.
    pub vocabulary: usize,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// The five most likely tokens of each step.
    pub top5: Vec<[u32; 5]>,
}

impl Golden {
    /// Reads the goldens of one precision for a model of these sizes.
    ///
    /// # Errors
    /// When the file is not a golden, lacks this precision, or has other sizes.
    pub fn read(path: &Path, precision: GoldenPrecision, sizes: &GoldenSizes) -> Result<Golden> {
        let file = GoldenFile::open(path, precision, sizes)?;
        file.check_kind(GoldenKind::Decoder)?;
        let prompts = (0..file.prompts()).map(|index| prompt(&file, index));
        Ok(Golden { prompts: prompts.collect::<Result<_>>().map_err(|error| error.of(path.display()))? })
    }
}

fn prompt(file: &GoldenFile<'_>, index: usize) -> Result<GoldenPrompt> {
    let GoldenSizes { width, vocabulary, .. } = *file.sizes();
    let tokens = file.tokens(index)?;
    let logits = file.numbers(&file.name(index, "logits"), &[tokens.len(), vocabulary])?;
    let top5 = file.ids(&file.name(index, "step_top5"), 2)?;
    let greedy = file.ids(&file.name(index, "greedy"), 1)?;
    if top5.len() != 5 * greedy.len() {
        let (steps, top5) = (greedy.len(), top5.len());
        return Err(Error::new(format!(
            "prompt {index} has {steps} greedy tokens and {top5} top-5 tokens; 5 per step are needed"
        )));
    }
    let reference = ReferenceOutputs {
        hidden: file.hidden(index, tokens.len())?,
        width,
        logits,
        vocabulary,
        greedy,
        top5: top5.chunks_exact(5).map(|ids| ids.try_into().expect("chunks of five")).collect(),
    };
    Ok(GoldenPrompt { tokens, reference })
}
