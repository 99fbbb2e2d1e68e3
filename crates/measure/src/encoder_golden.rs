//! Golden files of encoders: the hidden states of transformers for a few prompts.
//!
//! Such a golden has, for each prompt `I` and each precision `P` (`f32`, `bf16`):
//! `pI.input_ids [T]`, `pI.token_type_ids [1, T]`, `pI.hidden_P [L+1, T, D]` (the embeddings, then
//! the output of each layer) and `pI.mean_P [D]` (the mean of the last hidden states). It may
//! also have a batch of texts as transformers ran it, in `f32`: `batch.input_ids [B, T]`,
//! `batch.attention_mask [B, T]` (1 for the tokens of a text, then 0 for its padding) and
//! `batch.last_hidden_f32 [B, T, D]`.
//!
//! A golden that contradicts itself is refused: all numbers are finite, each mean is that of the
//! hidden states, and text `I` of the batch has the tokens of prompt `I`. Hidden states of padding
//! are not compared.

use std::path::Path;

use girih_graph::Pooling;

use crate::golden_file::{GoldenFile, GoldenKind, GoldenSizes};
use crate::{Error, GoldenPrecision, Result};

/// The prompts of a golden file of an encoder, at one precision.
#[derive(Debug)]
pub struct EncoderGolden {
    /// The prompts in the order of the file.
    pub prompts: Vec<EncoderPrompt>,
    /// The texts of the padded batch; empty if the file has none at this precision.
    pub batch: Vec<PaddedText>,
}

/// One prompt and the outputs of transformers for it.
#[derive(Debug)]
pub struct EncoderPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their types.
    pub token_types: Vec<u32>,
    /// The hidden states, each `[T, D]`, row after row.
    pub hidden: Vec<Vec<f32>>,
    /// The mean of the last hidden states.
    pub mean: Vec<f32>,
}

/// One text of the padded batch, without its padding; all its token types are 0.
#[derive(Debug)]
pub struct PaddedText {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The last hidden states, row after row.
    pub last_hidden: Vec<f32>,
}

impl EncoderGolden {
    /// Reads the goldens of one precision for an encoder of these sizes.
    ///
    /// # Errors
    /// When the file is not a golden of an encoder, lacks this precision, has other sizes, or
    /// contradicts itself.
    pub fn read(path: &Path, precision: GoldenPrecision, sizes: &GoldenSizes) -> Result<EncoderGolden> {
        let file = GoldenFile::open(path, precision, sizes)?;
        file.check_kind(GoldenKind::Encoder)?;
        let read = || {
            let prompts = (0..file.prompts()).map(|index| prompt(&file, index));
            let golden = EncoderGolden { prompts: prompts.collect::<Result<_>>()?, batch: batch(&file)? };
            golden.check_batch()?;
            Ok(golden)
        };
        read().map_err(|error: Error| error.of(path.display()))
    }

    /// Checks that the batch, if there is one, has the texts of the prompts.
    fn check_batch(&self) -> Result<()> {
        let (texts, prompts) = (self.batch.len(), self.prompts.len());
        if texts != 0 && texts != prompts {
            return Err(Error::new(format!(
                "the batch has {texts} texts, but the golden has {prompts} prompts; make the golden again"
            )));
        }
        let mut pairs = self.batch.iter().zip(&self.prompts);
        match pairs.position(|(text, prompt)| text.tokens != prompt.tokens) {
            None => Ok(()),
            Some(index) => Err(Error::new(format!(
                "row {index} of 'batch.input_ids' has other tokens than prompt {index}; make the golden again"
            ))),
        }
    }
}

impl EncoderPrompt {
    /// The row that an encoder with this pooling makes of the prompt.
    pub fn pooled(&self, how: Pooling) -> &[f32] {
        let (last, width) = (self.hidden.last().map_or(&[][..], Vec::as_slice), self.mean.len());
        match how {
            Pooling::Mean => &self.mean,
            Pooling::First => &last[..width],
            Pooling::Last => &last[last.len() - width..],
        }
    }
}

fn prompt(file: &GoldenFile<'_>, index: usize) -> Result<EncoderPrompt> {
    let tokens = file.tokens(index)?;
    let token_types = file.ids(&format!("p{index}.token_type_ids"), 2)?;
    if token_types.len() != tokens.len() {
        let (types, tokens) = (token_types.len(), tokens.len());
        return Err(Error::new(format!(
            "prompt {index} has {tokens} tokens and {types} token types; one type per token is needed"
        )));
    }
    let mean = file.numbers(&file.name(index, "mean"), &[file.sizes().width])?;
    let hidden = file.hidden(index, tokens.len())?;
    check_mean(index, &mean, hidden.last().map_or(&[], Vec::as_slice))?;
    Ok(EncoderPrompt { hidden, tokens, token_types, mean })
}

/// Checks that a mean is that of the last hidden states. Each of the additions and the division
/// round in single precision, in any order, by up to `2⁻²⁴` of the sum of magnitudes (Higham 2002,
/// *Accuracy and Stability of Numerical Algorithms*, section 4.2).
fn check_mean(index: usize, mean: &[f32], rows: &[f32]) -> Result<()> {
    let count = rows.len() / mean.len();
    for (column, found) in mean.iter().enumerate() {
        let values = || rows.iter().skip(column).step_by(mean.len()).map(|value| f64::from(*value));
        let expected = values().sum::<f64>() / count as f64;
        let rounding = values().map(f64::abs).sum::<f64>() * f64::from(f32::EPSILON) / 2.0;
        if (f64::from(*found) - expected).abs() > rounding {
            return Err(Error::new(format!(
                "prompt {index}: 'mean' has {found} at {column}, but the mean of the last hidden states is \
                 {expected}; make the golden again"
            )));
        }
    }
    Ok(())
}

/// The texts of the padded batch.
fn batch(file: &GoldenFile<'_>) -> Result<Vec<PaddedText>> {
    if file.precision() != GoldenPrecision::F32 || !file.has("batch.input_ids") {
        return Ok(Vec::new());
    }
    let [texts, padded] = file.extents("batch.input_ids")?;
    if file.extents("batch.attention_mask")? != [texts, padded] {
        return Err(Error::new("'batch.attention_mask' and 'batch.input_ids' have different shapes"));
    }
    let width = file.sizes().width;
    let tokens = file.ids("batch.input_ids", 2)?;
    let mask = file.ids("batch.attention_mask", 2)?;
    let hidden = file.numbers("batch.last_hidden_f32", &[texts, padded, width])?;
    let rows = tokens.chunks_exact(padded).zip(mask.chunks_exact(padded));
    let rows = rows.zip(hidden.chunks_exact(padded * width)).enumerate();
    let texts = rows.map(|(index, ((tokens, mask), hidden))| {
        let count = mask.iter().take_while(|bit| **bit == 1).count();
        if count == 0 || mask[count..].iter().any(|bit| *bit != 0) {
            return Err(Error::new(format!(
                "row {index} of 'batch.attention_mask' is not ones and then zeros; padding must follow its text"
            )));
        }
        let tokens = tokens[..count].to_vec();
        file.check_tokens(&format!("row {index} of the batch"), &tokens)?;
        Ok(PaddedText { tokens, last_hidden: hidden[..count * width].to_vec() })
    });
    texts.collect()
}
