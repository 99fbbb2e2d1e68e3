//! The accuracy gate of a layer that predicts the token after the next one: its logits for the golden's hidden states are
//! within the derived bound.

use std::path::Path;

use girih_graph::backend::{Block, Input, Range32};
use girih_graph::{BLOCK_POSITIONS, InputSpec, Outputs, Runner, Sequence, Step};
use serde::Serialize;

use crate::bound::rms;
use crate::golden_file::{GoldenFile, GoldenKind, GoldenSizes};
use crate::layers::{LayerRow, compare_within};
use crate::{BoundUse, Error, ErrorBound, ErrorKind, GoldenPrecision, Result};

/// The prompts of a golden file with the outputs of such a layer.
#[derive(Debug)]
pub struct MtpGolden {
    /// The prompts in the order of the file.
    pub prompts: Vec<MtpPrompt>,
    vocabulary: usize,
}

/// One prompt.
#[derive(Debug)]
pub struct MtpPrompt {
    /// The token after each row.
    pub tokens: Vec<u32>,
    /// What the layer reads of the model for each of these tokens: the hidden states after the last norm, or for an
    /// assistant the values of all its inputs of hidden states, row after row.
    pub hidden: Vec<f32>,
    /// The layer's logits, row after row.
    pub logits: Vec<f32>,
}

/// The outcome for a layer.
#[derive(Clone, Debug, Serialize)]
pub struct MtpVerdict {
    /// Whether every prompt passed.
    pub passed: bool,
    /// How the bound was found.
    pub bound: BoundUse,
    /// The logits of each prompt.
    pub prompts: Vec<LayerRow>,
}

impl MtpGolden {
    /// Reads the goldens of one precision for a model of these sizes.
    ///
    /// # Errors
    /// When the file is no golden of such a layer, or has other sizes.
    pub fn read(path: &Path, precision: GoldenPrecision, sizes: &GoldenSizes) -> Result<MtpGolden> {
        let file = GoldenFile::open(path, precision, sizes)?;
        file.check_kind(GoldenKind::Decoder)?;
        let prompts = (0..file.prompts()).map(|index| prompt(&file, index));
        let prompts = prompts.collect::<Result<_>>().map_err(|error| error.of(path.display()))?;
        Ok(MtpGolden { prompts, vocabulary: sizes.vocabulary })
    }
}

fn prompt(file: &GoldenFile<'_>, index: usize) -> Result<MtpPrompt> {
    let GoldenSizes { width, vocabulary, .. } = *file.sizes();
    let mut tokens = file.tokens(index)?;
    let rows = file.name(index, "mtp_rows");
    let mut hidden = match file.has(&rows) {
        true => Vec::new(),
        false => file.hidden(index, tokens.len())?.pop().unwrap_or_default(),
    };
    tokens.remove(0);
    if tokens.is_empty() {
        return Err(Error::new(format!("prompt {index} has one token; the layer needs the next one, too")));
    }
    hidden.truncate(tokens.len() * width);
    if file.has(&rows) {
        let [_, columns] = file.extents(&rows)?;
        hidden = file.numbers(&rows, &[tokens.len(), columns])?;
    }
    let logits = file.numbers(&file.name(index, "mtp_logits"), &[tokens.len(), vocabulary])?;
    Ok(MtpPrompt { tokens, hidden, logits })
}

/// Runs every prompt in steps of as many rows as the program has output rows, and compares the logits.
///
/// # Errors
/// When a prompt does not fit into the context, or a step fails.
pub fn verify_mtp(runner: &mut dyn Runner, golden: &MtpGolden, bound: &ErrorBound) -> Result<MtpVerdict> {
    let (mut used, mut prompts) = (bound.all_followed(), Vec::with_capacity(golden.prompts.len()));
    for prompt in &golden.prompts {
        let mut sizes = bound.row_sizes([prompt.tokens.len()]);
        let logits = run(runner, prompt, &mut sizes)?;
        let errors = bound.follow(&sizes);
        used.add(&errors);
        let permitted = |token, row: &[f32]| bound.at("logits", rms(row), errors.of("logits", token));
        prompts.push(compare_within("logits", &logits, &prompt.logits, golden.vocabulary, permitted));
    }
    Ok(MtpVerdict { passed: prompts.iter().all(LayerRow::within), bound: used, prompts })
}

/// Runs a prompt as one sequence; returns the logits of all rows.
fn run(runner: &mut dyn Runner, prompt: &MtpPrompt, watch: &mut dyn girih_graph::Watch) -> Result<Vec<f32>> {
    let (key, vocabulary) = (runner.max_key(), runner.width());
    let count = prompt.tokens.len();
    if count > key.context as usize {
        let sentence = format!(
            "a prompt of the golden has {count} rows; the context is {}: enlarge the context",
            key.context
        );
        return Err(Error::with_kind(ErrorKind::TooLong, sentence));
    }
    let (first, others) = runner.inputs().split_first().ok_or_else(unknown_inputs)?;
    let widths: Option<Vec<usize>> = others.iter().map(InputSpec::hidden_width).collect();
    let widths = widths.filter(|_| first.name == InputSpec::TOKENS).ok_or_else(unknown_inputs)?;
    let width: usize = widths.iter().sum();
    if width == 0 || prompt.hidden.len() != count * width {
        let rows = prompt.hidden.len();
        return Err(Error::new(format!(
            "the golden has {rows} values of {count} rows; the program reads {width} of each"
        )));
    }
    // Rows of a new sequence: what blocks held before is behind none of them.
    let blocks: Vec<Block> = (0..count.div_ceil(BLOCK_POSITIONS) as u32).map(Block).collect();
    let blocks: Vec<&[Block]> = runner.groups().iter().map(|_| blocks.as_slice()).collect();
    let mut logits = Vec::with_capacity(count * vocabulary);
    let most = key.rows.min(key.output_rows).max(1) as usize;
    let rows = prompt.tokens.chunks(most).zip(prompt.hidden.chunks(most * width));
    for (index, (tokens, hidden)) in rows.enumerate() {
        let rows = Range32 { start: 0, end: tokens.len() as u32 };
        let position = (index * most) as u32;
        let sequence = Sequence { blocks: &blocks, position, rows, outputs: Outputs::All, spans: &[] };
        let mut next = 0;
        let part = |columns: &usize| -> Vec<f32> {
            let columns = next..next + columns;
            next = columns.end;
            hidden.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect()
        };
        let parts: Vec<Vec<f32>> = widths.iter().map(part).collect();
        let inputs = std::iter::once(Input::Ids(tokens)).chain(parts.iter().map(|part| Input::Rows(part)));
        let inputs: Vec<Input<'_>> = inputs.collect();
        runner.step(Step { inputs: &inputs, sequences: &[sequence], watch })?;
        runner.output().wait()?;
        logits.extend_from_slice(runner.output().rows(0..tokens.len())?);
    }
    Ok(logits)
}

fn unknown_inputs() -> Error {
    Error::new("the program does not read tokens and hidden states; this is a bug in girih")
}
