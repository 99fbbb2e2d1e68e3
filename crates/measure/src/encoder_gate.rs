//! The accuracy gate of encoders. An encoder passes if its hidden states and pooled rows are
//! within the derived bound, and if texts that run in one step have the hidden states of
//! transformers' padded batch.

use girih_engine::{Encoder, EncoderInput};
use girih_graph::Pooling;
use girih_model::layer_output;
use serde::Serialize;

use crate::bound::rms;
use crate::encoder_golden::{EncoderGolden, EncoderPrompt, PaddedText};
use crate::layers::{LayerRow, RunWatch, compare_within};
use crate::progress::{ProgressWatcher, TokenCounter};
use crate::running_error::RowErrors;
use crate::{BoundUse, ErrorBound, HiddenStates, Result};

/// The outcome for an encoder.
#[derive(Clone, Debug, Serialize)]
pub struct EncoderVerdict {
    /// Whether every prompt and the batch passed.
    pub passed: bool,
    /// How the bound was found.
    pub bound: BoundUse,
    /// One entry per prompt.
    pub prompts: Vec<EncoderPromptVerdict>,
    /// The last hidden states of the batch's texts; `None` if the golden has no batch.
    pub batch: Option<LayerRow>,
}

/// The outcome for one prompt.
#[derive(Clone, Debug, Serialize)]
pub struct EncoderPromptVerdict {
    /// Its index in the golden.
    pub prompt: usize,
    /// Its number of tokens.
    pub tokens: usize,
    /// Whether it passed.
    pub passed: bool,
    /// The largest absolute difference of a value of the pooled row.
    pub pooled_max_abs: f64,
    /// The first layer with a value beyond its bound, and its token.
    pub first_out_of_bound: Option<LayerRow>,
}

/// Compares an encoder of `layers` layers that pools as `how` with every prompt and the batch
/// of a golden, which must have been read for the model's sizes.
///
/// # Errors
/// When a prompt does not fit into the context, or a step fails.
pub fn verify_encoder(
    encoder: &mut Encoder,
    golden: &EncoderGolden,
    layers: usize,
    how: Pooling,
    bound: &ErrorBound,
    progress: ProgressWatcher<'_>,
) -> Result<EncoderVerdict> {
    let total: usize = golden.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let mut counter = TokenCounter::new(total as u64, progress);
    let (mut prompts, mut used) = (Vec::with_capacity(golden.prompts.len()), bound.all_followed());
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let rows = diagnose_encoder(encoder, prompt, layers, how, bound, &mut used)?;
        counter.add(prompt.tokens.len() as u64);
        let first_out_of_bound = rows.iter().find(|row| !row.within()).cloned();
        prompts.push(EncoderPromptVerdict {
            prompt: index,
            tokens: prompt.tokens.len(),
            passed: first_out_of_bound.is_none(),
            pooled_max_abs: rows.last().map_or(0.0, |row| row.max_abs),
            first_out_of_bound,
        });
    }
    let batch = compare_batch(encoder, &golden.batch, layers, bound, &mut used)?;
    let passed = prompts.iter().all(|prompt| prompt.passed) && batch.as_ref().is_none_or(LayerRow::within);
    Ok(EncoderVerdict { passed, bound: used, prompts, batch })
}

/// Runs a prompt and compares every hidden state and the pooled row. The golden must have
/// been read for the sizes of the model, which has `layers` layers and pools as `how`. Adds to `used` how
/// the bound was found.
///
/// # Errors
/// When the prompt does not fit into the context, or a step fails.
pub fn diagnose_encoder(
    encoder: &mut Encoder,
    prompt: &EncoderPrompt,
    layers: usize,
    how: Pooling,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<Vec<LayerRow>> {
    let width = prompt.mean.len();
    let text = EncoderInput { tokens: &prompt.tokens, token_types: &prompt.token_types };
    let hidden = HiddenStates::of_encoder(layers);
    let (pooled, hidden, errors) = encode(encoder, &[text], hidden, bound, used)?;
    let mut rows = Vec::with_capacity(layers + 2);
    for (index, want) in prompt.hidden.iter().enumerate() {
        rows.push(compare(hidden.name(index), &hidden.states[index], want, width, bound, &errors));
    }
    let want = prompt.pooled(how);
    // The rows of a mean may cancel, but their errors need not. Counted ones are relative to the rows.
    let size = match how {
        Pooling::Mean => rms(&prompt.hidden[layers]),
        Pooling::First | Pooling::Last => rms(want),
    };
    let followed = errors.of("pooled", 0).map(|error| error * (rms(want) / size).powi(2));
    let bound = bound.at("pooled", size, followed);
    rows.push(compare_within("pooled", &pooled, want, width, |_, _| bound));
    Ok(rows)
}

/// Runs texts, and returns their pooled rows, hidden states and followed errors.
fn encode(
    encoder: &mut Encoder,
    texts: &[EncoderInput<'_>],
    hidden: HiddenStates,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<(Vec<f32>, HiddenStates, RowErrors)> {
    let sizes = bound.row_sizes(texts.iter().map(|text| text.tokens.len()));
    let mut watch = RunWatch { hidden, sizes };
    let pooled = encoder.encode(texts, &mut watch)?.concat();
    let errors = bound.follow(&watch.sizes);
    used.add(&errors);
    Ok((pooled, watch.hidden, errors))
}

/// Compares the rows of a hidden state.
fn compare(
    name: &str,
    got: &[f32],
    want: &[f32],
    width: usize,
    bound: &ErrorBound,
    errors: &RowErrors,
) -> LayerRow {
    compare_within(name, got, want, width, |row, want| bound.at(name, rms(want), errors.of(name, row)))
}

/// Runs all texts in as few steps as possible, and compares their last hidden states.
fn compare_batch(
    encoder: &mut Encoder,
    batch: &[PaddedText],
    layers: usize,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<Option<LayerRow>> {
    let Some(first) = batch.first() else { return Ok(None) };
    let width = first.last_hidden.len() / first.tokens.len();
    let texts: Vec<EncoderInput<'_>> =
        batch.iter().map(|text| EncoderInput { tokens: &text.tokens, token_types: &[] }).collect();
    let want: Vec<f32> = batch.iter().flat_map(|text| text.last_hidden.iter().copied()).collect();
    let last = layers.checked_sub(1).map_or_else(|| "embed".to_owned(), layer_output);
    let hidden = HiddenStates::named(std::iter::once(last));
    let (_, hidden, errors) = encode(encoder, &texts, hidden, bound, used)?;
    Ok(Some(compare(hidden.name(0), &hidden.states[0], &want, width, bound, &errors)))
}
