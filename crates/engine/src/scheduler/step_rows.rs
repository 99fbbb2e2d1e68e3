//! The scheduler: chooses the rows of the next step, as a pure function of the
//! progress of each sequence.

use girih_graph::Outputs;
use girih_graph::backend::Range32;

use crate::cache::before_span;

/// The progress of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceProgress<'a> {
    /// The number of its tokens that have been run.
    pub run: u32,
    /// The number of its tokens: the prompt and the tokens chosen since.
    pub known: u32,
    /// The position of its first row that is an output row: that of its last known token, or an
    /// earlier one if the prompt's own log-probabilities were asked for.
    pub first_output: u32,
    /// The mutual spans among its tokens, in order. Each runs in one step.
    pub spans: &'a [Range32],
}

/// The rows of one sequence that a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledRows {
    /// The index of the sequence.
    pub sequence: usize,
    /// The positions to run.
    pub positions: Range32,
    /// Which of the rows are output rows.
    pub outputs: Outputs,
}

impl ScheduledRows {
    /// The number of rows.
    pub fn count(&self) -> u32 {
        self.positions.end - self.positions.start
    }
}

/// Schedules the next step of these sequences, the oldest first, in at most `rows`
/// rows and `output_rows` output rows: one entry per sequence that runs any, in the same order.
///
/// Sequences with one token left, as in decode, come first. The remaining rows go to
/// prefill, the oldest prompt first. So if there are at most as many sequences as rows,
/// every reply advances in every step, a long prompt delays it by at most one step of
/// `rows` rows, and the oldest prompt always advances: no sequence starves.
///
/// A mutual span is run in one step: if its positions exceed the remaining rows, the sequence
/// stops before it. A span of at most `rows` less one row for each other sequence runs, at
/// the latest, when its prompt is the oldest.
///
/// Only the last known token is an output row, because only its logits choose a new
/// token; and rows from [`SequenceProgress::first_output`] on. Each sequence may have one output
/// row. Those beyond go to the oldest sequences that need more, whose chunks end where they do.
pub fn schedule(sequences: &[SequenceProgress<'_>], rows: u32, output_rows: u32) -> Vec<ScheduledRows> {
    let remaining = |sequence: &SequenceProgress<'_>| sequence.known - sequence.run;
    assert!(
        sequences.iter().all(|sequence| sequence.run < sequence.known),
        "every sequence has tokens left to run"
    );
    let decoding = sequences.iter().filter(|sequence| remaining(sequence) == 1).count() as u32;
    let mut for_decode = rows.min(decoding);
    let mut for_prefill = rows - for_decode;
    let mut spare_outputs = output_rows.saturating_sub(sequences.len() as u32);
    let mut scheduled = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let budget = if remaining(sequence) == 1 { &mut for_decode } else { &mut for_prefill };
        let fits = sequence.run + remaining(sequence).min(*budget);
        let first_output = sequence.first_output.max(sequence.run);
        let fits = fits.min(first_output.saturating_add(1).saturating_add(spare_outputs));
        let count = before_span(sequence.spans, fits) - sequence.run;
        *budget -= count;
        if count > 0 {
            let positions = Range32 { start: sequence.run, end: sequence.run + count };
            let outputs = match positions.end.saturating_sub(first_output) {
                0 => Outputs::None,
                1 => Outputs::Last,
                more => Outputs::LastN(more),
            };
            spare_outputs -= outputs.count(count).saturating_sub(1);
            scheduled.push(ScheduledRows { sequence: index, positions, outputs });
        }
    }
    scheduled
}
