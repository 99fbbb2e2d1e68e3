//! Comparison of hidden states and logits with a golden, or with another backend's
//! outputs for the same tokens, one row per layer.

use std::ops::Range;

use girih_engine::{EmbeddedRows, Engine, TokenPrompt};
use girih_graph::backend::Range32;
use girih_graph::{InputSpec, Watch};
use girih_tensor::Shape;
use serde::Serialize;

use crate::bound::rms;
use crate::golden::GoldenPrompt;
use crate::progress::{ProgressWatcher, TokenCounter};
use crate::rounding::mean_square;
use crate::row_sizes::RowSizes;
use crate::{BoundUse, ErrorBound, HiddenStates, Result};

/// The difference between one hidden state, or the logits, and its golden.
#[derive(Clone, Debug, Serialize)]
pub struct LayerRow {
    /// `embed`, `layers.{i}.out`, `head.norm`, `logits` or `pooled`.
    pub layer: String,
    /// The smallest cosine similarity of a row and its golden.
    pub cosine: f64,
    /// The largest absolute difference of a value.
    pub max_abs: f64,
    /// The root mean square of all differences.
    pub rms: f64,
    /// The largest ratio of a difference to its bound; above 1 the difference exceeds
    /// its bound.
    pub of_bound: f64,
    /// The largest bound of a row, relative to the row's root mean square in the golden.
    pub bound: f64,
    /// The token with the ratio `of_bound`.
    pub worst_token: usize,
}

impl LayerRow {
    /// Whether every value is within its bound.
    pub fn within(&self) -> bool {
        self.of_bound <= 1.0
    }
}

/// Runs a prompt and compares every hidden state and the logits. The golden must have
/// been read for the sizes of the model, which has `layers` layers. Adds to `used` how the bound was
/// found.
///
/// # Errors
/// When the prompt does not fit into the context, or a step fails.
pub fn diagnose(
    engine: &mut Engine,
    prompt: &GoldenPrompt,
    layers: usize,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<Vec<LayerRow>> {
    let reference = &prompt.reference;
    let (given, spans) = (prompt.given(), prompt.spans());
    let sizes = bound.row_sizes([prompt.tokens.len()]).with_spans(indexes(&spans));
    let sizes = with_added(sizes, &given, prompt.tokens.len());
    let mut watch = RunWatch { hidden: HiddenStates::of(layers), sizes };
    let mut logits = Vec::with_capacity(reference.logits.len());
    let run = TokenPrompt { tokens: &prompt.tokens, given: &given, spans: &spans };
    engine.logits_of(run, &mut watch, |_, row| logits.extend_from_slice(row))?;
    let RunWatch { hidden, sizes } = watch;
    let errors = bound.follow(&sizes);
    used.add(&errors);
    let compare = |name: &str, got: &[f32], want: &[f32], width| {
        compare_within(name, got, want, width, |token, row| bound.at(name, rms(row), errors.of(name, token)))
    };
    let mut rows = Vec::with_capacity(layers + 2);
    for (index, want) in reference.hidden.iter().enumerate() {
        rows.push(compare(hidden.name(index), &hidden.states[index], want, reference.width));
    }
    rows.push(compare("logits", &logits, &reference.logits, reference.vocabulary));
    Ok(rows)
}

/// Runs tokens and returns the followed error of the logits of each.
///
/// # Errors
/// When the tokens do not fit into the context, or a step fails.
pub(crate) fn logit_errors(
    engine: &mut Engine,
    prompt: TokenPrompt<'_>,
    bound: &ErrorBound,
    used: &mut BoundUse,
) -> Result<Vec<Option<f64>>> {
    let rows = prompt.tokens.len();
    let sizes = bound.row_sizes([rows]).with_spans(indexes(prompt.spans));
    let mut sizes = with_added(sizes, prompt.given, rows);
    engine.logits_of(prompt, &mut sizes, |_, _| {})?;
    let errors = bound.follow(&sizes);
    used.add(&errors);
    Ok((0..rows).map(|row| errors.of("logits", row)).collect())
}

/// With the mean squares of what given rows add to the outputs of layers, in a prompt of `count` tokens.
fn with_added<'a>(mut sizes: RowSizes<'a>, given: &[EmbeddedRows], count: usize) -> RowSizes<'a> {
    let layers = given.iter().map(|rows| rows.added.len()).max().unwrap_or(0);
    for layer in 0..layers {
        let mut squares = vec![0.0; count];
        for rows in given {
            let Some(added) = rows.added.get(layer) else { continue };
            let own = added.chunks_exact(added.len() / rows.rows as usize);
            for (square, row) in squares[rows.first as usize..].iter_mut().zip(own) {
                *square = mean_square(row.iter().copied());
            }
        }
        sizes = sizes.with_squares(&format!("{}{layer}", InputSpec::ADDED), squares);
    }
    sizes
}

/// Spans as indexes of rows.
pub(crate) fn indexes(spans: &[Range32]) -> Vec<Range<usize>> {
    spans.iter().map(|span| span.indexes()).collect()
}

/// Collects the hidden states of a run and the sizes of all rows.
pub(crate) struct RunWatch<'a> {
    pub(crate) hidden: HiddenStates,
    pub(crate) sizes: RowSizes<'a>,
}

impl Watch for RunWatch<'_> {
    fn wants(&self, name: &str) -> bool {
        self.hidden.wants(name) || self.sizes.wants(name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        if self.hidden.wants(name) {
            self.hidden.value(name, shape, data);
        }
        if self.sizes.wants(name) {
            self.sizes.value(name, shape, data);
        }
    }
}

/// Runs tokens on two engines of one model of `layers` layers, and compares
/// every hidden state and the logits that follow the last token. `bound` is
/// relative to `reference`, and counted. `progress` counts the tokens of both.
///
/// # Errors
/// When the tokens do not fit into a context, or a step fails.
pub fn diagnose_against(
    engine: &mut Engine,
    reference: &mut Engine,
    tokens: &[u32],
    layers: usize,
    bound: &ErrorBound,
    progress: ProgressWatcher<'_>,
) -> Result<Vec<LayerRow>> {
    let (mut got, mut want) = (HiddenStates::every(layers), HiddenStates::every(layers));
    let mut counter = TokenCounter::new(2 * tokens.len() as u64, progress);
    let ours = engine.last_logits(tokens, &mut got)?;
    counter.add(tokens.len() as u64);
    let logits = [ours, reference.last_logits(tokens, &mut want)?];
    counter.add(tokens.len() as u64);
    let (mut rows, names) = (Vec::with_capacity(layers + 3), &got);
    let compare = |name: &str, got: &[f32], want: &[f32], width| {
        compare_within(name, got, want, width, |_, row| bound.at(name, rms(row), None))
    };
    for (index, (got, want)) in got.states.iter().zip(&want.states).enumerate() {
        // The head's norm runs for the last row only.
        let of = if index > layers { 1 } else { tokens.len().max(1) };
        rows.push(compare(names.name(index), got, want, want.len() / of));
    }
    rows.push(compare("logits", &logits[0], &logits[1], logits[1].len()));
    Ok(rows)
}

/// Compares rows of `width` values; `bound` returns that of a token and its row in the golden.
pub(crate) fn compare_within(
    layer: &str,
    got: &[f32],
    want: &[f32],
    width: usize,
    bound: impl Fn(usize, &[f32]) -> f64,
) -> LayerRow {
    let mut row = LayerRow {
        layer: layer.to_owned(),
        cosine: 1.0,
        max_abs: 0.0,
        rms: 0.0,
        of_bound: 0.0,
        bound: 0.0,
        worst_token: 0,
    };
    assert_eq!(
        got.len(),
        want.len(),
        "the golden was read for another model's sizes, not for those of '{layer}'"
    );
    let mut squares = 0.0;
    for (token, (got, want)) in got.chunks_exact(width).zip(want.chunks_exact(width)).enumerate() {
        let largest = largest_difference(got, want);
        squares += got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>();
        let permitted = bound(token, want);
        let share = share(largest, permitted);
        row.bound = row.bound.max(permitted / rms(want).max(f64::MIN_POSITIVE));
        row.cosine = row.cosine.min(cosine(got, want));
        row.max_abs = row.max_abs.max(largest);
        if share > row.of_bound {
            (row.of_bound, row.worst_token) = (share, token);
        }
    }
    row.rms = (squares / want.len().max(1) as f64).sqrt();
    row
}

/// Returns the ratio of a difference to its bound; infinite if the bound is, because the
/// golden is not finite.
fn share(difference: f64, bound: f64) -> f64 {
    if bound.is_finite() { difference / bound.max(f64::MIN_POSITIVE) } else { f64::INFINITY }
}

/// Returns the largest absolute difference; infinite if a value is NaN.
fn largest_difference(got: &[f32], want: &[f32]) -> f64 {
    let differences = got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    differences.fold(0.0, |max, d| if d.is_nan() { f64::INFINITY } else { max.max(d) })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = girih_tensor::reference::dot(a, b).sum;
    let sizes = rms(a) * rms(b) * a.len() as f64;
    if sizes == 0.0 { 1.0 } else { dot / sizes }
}
