//! Golden files: the outputs of transformers for a few prompts.
//!
//! A golden is a safetensors file with, for each prompt `I` and each precision
//! `P` (`f32`, `bf16`): `pI.input_ids [T]`, `pI.hidden_P [L+1, T, D]` (the
//! embeddings, then the output of each layer, the last one after the final
//! norm), `pI.logits_P [T, V]`, `pI.greedy_P [N]` (the greedy continuation),
//! `pI.margin_P [N]` (the difference between the two largest logits) and
//! `pI.step_top5_P [N, 5]` (the ids of the five largest logits of each step).
//! `scripts/make_golden.py` writes one from any model that transformers runs.
//!
//! A prompt with images also has `pI.pixel_values [N, C, H, W]`, `pI.image_features_P [N, R, D]` (what the tower makes of
//! them) and `pI.token_type_ids [1, T]` (1 for the rows of images), and perhaps `pI.tower_P [N, L+1, S, W]` (the
//! embeddings of the tower's patches, row by row, then the output of each of its layers). If images have any size, it has
//! `pI.pixel_values [S, V]` (the patches of all images in the tower's order), `pI.image_grid_thw [N, 3]`,
//! perhaps `pI.image_times [N]` (of a video's groups of frames that start at one position: 0 for the first one, then 1 more than how
//! far the group lies behind it in time), `pI.image_features_P [R, D]`, `pI.image_added_P [K, R, D]` for K tapped layers, and `pI.tower_P [L+1, S, W]`.
//!
//! A golden that contradicts itself is refused: all numbers are finite, each greedy token
//! heads its `step_top5`, and step 0 agrees with the last row of the logits.

use std::path::Path;

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;

use crate::bound::{GoldenPrecision, reordered_sum, rms};
use crate::golden_file::{GoldenFile, GoldenKind, GoldenSizes};
use crate::golden_image::{self, GoldenImage};
use crate::golden_step::{Disagreement, GoldenStep, StepAllowance};
use crate::{Error, Result};

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
    /// The images among them, in order.
    pub images: Vec<GoldenImage>,
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
    /// The greedy continuation; it has at least one step.
    pub greedy: Vec<GoldenStep>,
}

impl GoldenPrompt {
    /// The rows of its images, as the golden has them.
    pub(crate) fn given(&self) -> Vec<EmbeddedRows> {
        self.images.iter().map(GoldenImage::given).collect()
    }

    /// The positions of its images that attend to each other both ways.
    pub(crate) fn spans(&self) -> Vec<Range32> {
        self.images.iter().filter(|image| image.mutual).map(|image| image.rows).collect()
    }
}

impl Golden {
    /// The largest number of rows of an image, if there is one.
    pub fn image_rows(&self) -> Option<u32> {
        let images = self.prompts.iter().flat_map(|prompt| &prompt.images);
        images.map(|image| image.rows.end - image.rows.start).max()
    }

    /// Reads the goldens of one precision for a model of these sizes.
    ///
    /// # Errors
    /// When the file is not a golden, lacks this precision, has other sizes, or
    /// contradicts itself.
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
    let hidden = file.hidden(index, tokens.len())?;
    let logits = file.numbers(&file.name(index, "logits"), &[tokens.len(), vocabulary])?;
    let greedy = steps(file, index)?;
    let last = &logits[logits.len() - vocabulary..];
    let allowance = own_allowance(file.precision(), width, last);
    if let Some(disagreement) = greedy[0].disagreement(last, allowance) {
        let [margin, top5, choice, logits] =
            ["margin", "step_top5", "greedy", "logits"].map(|part| file.name(index, part));
        let what = match disagreement {
            Disagreement::Lead { token, lead, margin: found } => {
                format!("'{margin}' is {found}, but token {token} leads by {lead}")
            }
            Disagreement::Rank { above, below, excess } => {
                format!("'{top5}' ranks {below} before {above}, which is larger by {excess}")
            }
            Disagreement::Choice { ours, golden, .. } => {
                format!("'{choice}' is {golden}, but {ours} is the largest")
            }
        };
        return Err(Error::new(format!(
            "prompt {index}, step 0: {what} in the last row of '{logits}'; make the golden again"
        )));
    }
    let images = golden_image::images(file, index, tokens.len())?;
    Ok(GoldenPrompt {
        tokens,
        images,
        reference: ReferenceOutputs { hidden, width, logits, vocabulary, greedy },
    })
}

/// Reads the greedy continuation of a prompt; it has at least one step.
fn steps(file: &GoldenFile<'_>, index: usize) -> Result<Vec<GoldenStep>> {
    let names = ["greedy", "margin", "step_top5"].map(|part| file.name(index, part));
    let greedy = file.ids(&names[0], 1)?;
    let margins = file.numbers(&names[1], &[greedy.len()])?;
    let top5 = file.ids(&names[2], 2)?;
    let shape = file.extents(&names[2])?;
    if shape != [greedy.len(), 5] {
        let needed = [greedy.len(), 5];
        return Err(Error::new(format!(
            "tensor '{}' has the shape {shape:?}; for the steps of '{}' it must be {needed:?}",
            names[2], names[0]
        )));
    }
    file.check_tokens(&format!("tensor '{}'", names[0]), &greedy)?;
    file.check_tokens(&format!("tensor '{}'", names[2]), &top5)?;
    let rows = greedy.into_iter().zip(margins).zip(top5.chunks_exact(5));
    let steps = rows.enumerate().map(|(at, ((token, margin), ids))| {
        let step = GoldenStep { token, margin, top5: ids.try_into().expect("chunks of five") };
        step.check(&format!("prompt {index}, step {at}"))?;
        Ok(step)
    });
    steps.collect()
}

/// Twice the difference that a logit may have between two runs: the one that gave the golden's
/// logits, and the one that gave its first step. The runs may sum a logit's products in different orders, and the
/// golden's precision rounds the results: a sum near the middle of two of its numbers may become
/// either. That concerns one logit of two, so it is counted once.
fn own_allowance(precision: GoldenPrecision, width: usize, row: &[f32]) -> StepAllowance {
    let largest = row.iter().fold(0.0f32, |max, logit| max.max(logit.abs()));
    StepAllowance::of(2.0 * reordered_sum(width) * rms(row) + precision.spacing(largest.into()))
}
