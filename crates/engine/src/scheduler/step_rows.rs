//! The scheduler: chooses the rows of the next step, as a pure function of the
//! progress of each sequence.

use girih_graph::Outputs;
use girih_graph::backend::Range32;

use crate::cache::before_span;
use crate::row_work::{LEAST_PROMPT_ROWS, PromptShare};

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

impl SequenceProgress<'_> {
    /// The number of its tokens that have not been run.
    fn remaining(&self) -> u32 {
        self.known - self.run
    }

    /// The positions that it runs next: at most `rows`, and none from `end` on. They end before a span that does not fit whole.
    fn next(&self, rows: u32, end: u32) -> Range32 {
        let fits = (self.run + self.remaining().min(rows)).min(end);
        Range32 { start: self.run, end: before_span(self.spans, fits).max(self.run) }
    }
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

/// What a step may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// The maximum number of rows.
    pub rows: u32,
    /// The maximum number of output rows.
    pub output_rows: u32,
    /// The most work of prompts in a step that also runs replies; without it, only `rows` bounds them.
    pub prompts: Option<PromptShare>,
}

/// What a step has left for prompts.
struct PromptRoom {
    rows: u32,
    /// The bound on their work, if replies are beside them.
    share: Option<PromptShare>,
    /// Whether the next prompt is the oldest one.
    is_oldest: bool,
}

impl PromptRoom {
    /// The maximum number of rows of the next prompt. The oldest one has [`LEAST_PROMPT_ROWS`], or the span with which it
    /// goes on, if the step has room for them.
    fn fits(&self, prompt: &SequenceProgress<'_>) -> u32 {
        let Some(PromptShare { row, most }) = self.share else { return self.rows };
        let within = row.rows_within(prompt.run, self.rows, most);
        if !self.is_oldest {
            return within;
        }
        let span = prompt.spans.iter().find(|span| span.start == prompt.run);
        let least = span.map_or(0, |span| span.end - span.start).max(LEAST_PROMPT_ROWS);
        within.max(least.min(self.rows))
    }

    /// Takes the rows of the next prompt.
    fn take(&mut self, positions: Range32) {
        self.rows -= positions.end - positions.start;
        self.is_oldest = false;
        if let Some(PromptShare { row, most }) = &mut self.share {
            *most = most.saturating_sub(row.of(positions));
        }
    }
}

/// Schedules the next step of these sequences, the oldest first, within `budget`: one entry per sequence that runs any
/// rows, in the same order.
///
/// Sequences with one token left, as in decode, come first. The remaining rows go to
/// prefill, the oldest prompt first. So if there are at most as many sequences as rows,
/// every reply advances in every step, a long prompt delays it by at most one step of
/// `rows` rows, and the oldest prompt always advances: no sequence starves.
///
/// Beside a sequence in decode, the rows of prompts are bounded by the work of [`StepBudget::prompts`], too. The oldest
/// prompt has at least [`LEAST_PROMPT_ROWS`] rows, as far as it has them left and the step has room for them.
///
/// A mutual span is run in one step: if its positions exceed the remaining rows, the sequence
/// stops before it. A span of at most `rows` less one row for each other sequence runs, at
/// the latest, when its prompt is the oldest, however much work it is.
///
/// Only the last known token is an output row, because only its logits choose a new
/// token; and rows from [`SequenceProgress::first_output`] on. Each sequence may have one output
/// row. Those beyond go to the oldest sequences that need more, whose chunks end where they do.
pub fn schedule(sequences: &[SequenceProgress<'_>], budget: StepBudget) -> Vec<ScheduledRows> {
    let StepBudget { rows, output_rows, prompts } = budget;
    assert!(
        sequences.iter().all(|sequence| sequence.run < sequence.known),
        "every sequence has tokens left to run"
    );
    let decoding = sequences.iter().filter(|sequence| sequence.remaining() == 1).count() as u32;
    let mut for_decode = rows.min(decoding);
    let share = prompts.filter(|_| for_decode > 0);
    let mut for_prompts = PromptRoom { rows: rows - for_decode, share, is_oldest: true };
    let mut spare_outputs = output_rows.saturating_sub(sequences.len() as u32);
    let mut scheduled = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let first_output = sequence.first_output.max(sequence.run);
        let output_end = first_output.saturating_add(1).saturating_add(spare_outputs);
        let positions = if sequence.remaining() == 1 {
            let positions = sequence.next(for_decode, output_end);
            for_decode -= positions.end - positions.start;
            positions
        } else {
            let positions = sequence.next(for_prompts.fits(sequence), output_end);
            for_prompts.take(positions);
            positions
        };
        let count = positions.end - positions.start;
        if count > 0 {
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
