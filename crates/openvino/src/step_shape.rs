//! The steps that a model is made for: of any extents, or of fixed ones, which an NPU needs.

use std::collections::BTreeSet;

use girih_graph::backend::BLOCK_POSITIONS;
use girih_graph::{Key, Span, StateKind};

/// An extent of what a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAxis {
    /// The sequences of a call.
    Lanes,
    /// The rows of each sequence.
    Rows,
    /// The positions of earlier steps, in the windows of state of this kind.
    Window(StateKind),
    /// The positions that a request of an elastic model holds, with those of the step.
    Slots,
    /// The output rows of all sequences.
    Outputs,
    /// A number that the graph states.
    Of(usize),
}

/// The extents of the steps that a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StepShape {
    /// Any; the model is elastic.
    Any,
    /// Those of one sequence, to which shorter steps are filled up.
    Fixed(FixedStep),
}

/// The extents of a model for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FixedStep {
    /// The rows.
    pub rows: usize,
    /// The positions before the step that a window of the whole context has.
    pub context: usize,
    /// The output rows.
    pub outputs: usize,
}

impl StepShape {
    /// An extent of a parameter; `None` if it varies.
    pub fn extent(self, axis: StepAxis) -> Option<usize> {
        match (self, axis) {
            (_, StepAxis::Of(extent)) => Some(extent),
            (StepShape::Any, _) => None,
            (StepShape::Fixed(_), StepAxis::Lanes) => Some(1),
            (StepShape::Fixed(step), StepAxis::Rows) => Some(step.rows),
            (StepShape::Fixed(step), StepAxis::Window(kind)) => {
                Some(step.window_blocks(kind) * BLOCK_POSITIONS)
            }
            // Elastic models alone have variables.
            (StepShape::Fixed(_), StepAxis::Slots) => None,
            (StepShape::Fixed(step), StepAxis::Outputs) => Some(step.outputs),
        }
    }

    /// Whether the extents are fixed.
    pub fn is_fixed(self) -> bool {
        self != StepShape::Any
    }
}

impl FixedStep {
    /// The blocks of the windows of a group of state.
    pub fn window_blocks(self, kind: StateKind) -> usize {
        sliding_blocks(kind, self.context.div_ceil(BLOCK_POSITIONS).max(1))
    }

    /// Whether it runs a call of one sequence.
    fn holds(self, call: FixedStep) -> bool {
        self.rows >= call.rows && self.context >= call.context && self.outputs >= call.outputs
    }
}

/// The number of blocks of a window that has room for `blocks` of the whole context.
pub(crate) fn sliding_blocks(kind: StateKind, blocks: usize) -> usize {
    match kind {
        StateKind::Positions { span: Span::Window(length) | Span::Chunk(length) } => {
            // Of earlier positions, a row sees one less than the length; they may begin within a block.
            blocks.min((length.saturating_sub(1) as usize).div_ceil(BLOCK_POSITIONS) + 1)
        }
        StateKind::Positions { span: Span::Full | Span::Past | Span::All | Span::Mutual }
        | StateKind::Carried => blocks,
    }
}

/// The extents of the steps that a device's models are made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelShapes {
    /// Any, in one model.
    Any,
    /// Fixed ones, in several models.
    Fixed(Rungs),
}

impl ModelShapes {
    /// The extents of models of fixed extents; none for an elastic model.
    pub fn ladder(&self, largest: Key) -> Vec<FixedStep> {
        match self {
            ModelShapes::Any => Vec::new(),
            ModelShapes::Fixed(rungs) => rungs.ladder(largest),
        }
    }

    /// The models that are made when a model is loaded.
    pub fn made(&self, largest: Key) -> Vec<StepShape> {
        match self {
            ModelShapes::Any => vec![StepShape::Any],
            ModelShapes::Fixed(rungs) => rungs.ladder(largest).into_iter().map(StepShape::Fixed).collect(),
        }
    }

    /// Whether extents are fixed.
    pub fn are_fixed(&self) -> bool {
        matches!(self, ModelShapes::Fixed(_))
    }
}

/// The numbers of rows and of positions that models of fixed extents are made for, beside those of the largest step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rungs {
    /// Rows of prompts.
    pub lengths: Vec<u32>,
    /// Positions of models for one row.
    pub contexts: Vec<u32>,
}

impl Rungs {
    /// The models that are made when a model is loaded, smallest first. Those for one row have a rung for each context;
    /// those for prompts have the largest context and one output row.
    pub fn ladder(&self, largest: Key) -> Vec<FixedStep> {
        let shorter = |numbers: &[u32], least: u32, most: u32| -> BTreeSet<usize> {
            let within = numbers.iter().copied().filter(|number| (least..most).contains(number));
            within.chain([most]).map(|number| number as usize).collect()
        };
        let context = largest.context as usize;
        let single = shorter(&self.contexts, 1, largest.context).into_iter().map(|context| FixedStep {
            rows: 1,
            context,
            outputs: 1,
        });
        let prompts = shorter(&self.lengths, 2, largest.rows)
            .into_iter()
            .filter(|rows| *rows > 1)
            .map(|rows| FixedStep { rows, context, outputs: 1 });
        single.chain(prompts).collect()
    }
}

/// The smallest model that runs a call of one sequence with `rows` after `position` and this number of output rows. A call with
/// several output rows needs a model that returns all of its rows, which is made when it is first needed.
pub(crate) fn smallest(ladder: &[FixedStep], call: FixedStep) -> Option<FixedStep> {
    let with_outputs = |step: &FixedStep| {
        let outputs = if call.outputs > 1 { step.rows } else { step.outputs };
        FixedStep { outputs, ..*step }
    };
    ladder.iter().map(with_outputs).find(|step| step.holds(call))
}

#[cfg(test)]
mod tests {
    use girih_graph::OutputKind;

    use super::*;

    fn ladder(rows: u32, context: u32) -> Vec<FixedStep> {
        let rungs = Rungs { lengths: vec![64, 256], contexts: vec![1024, 4096] };
        let key = Key { rows, sequences: 2, context, output_rows: 3, output: OutputKind::Logits };
        rungs.ladder(key)
    }

    fn step(rows: usize, context: usize, outputs: usize) -> FixedStep {
        FixedStep { rows, context, outputs }
    }

    #[test]
    fn single_rows_have_a_rung_for_each_context_and_prompts_for_each_length() {
        let expected = [
            step(1, 1024, 1),
            step(1, 4096, 1),
            step(1, 5000, 1),
            step(64, 5000, 1),
            step(256, 5000, 1),
            step(512, 5000, 1),
        ];
        assert_eq!(ladder(512, 5000), expected);
        assert_eq!(ladder(64, 1024), [step(1, 1024, 1), step(64, 1024, 1)]);
        assert_eq!(ladder(1, 100), [step(1, 100, 1)]);
    }

    #[test]
    fn a_call_runs_on_the_smallest_model_that_holds_it() {
        let ladder = ladder(512, 5000);
        for (call, expected) in [
            (step(1, 1024, 1), Some(step(1, 1024, 1))),
            (step(1, 1025, 0), Some(step(1, 4096, 1))),
            (step(1, 4999, 1), Some(step(1, 5000, 1))),
            (step(2, 0, 1), Some(step(64, 5000, 1))),
            (step(65, 0, 2), Some(step(256, 5000, 256))),
            (step(2, 5001, 1), None),
            (step(513, 0, 1), None),
        ] {
            assert_eq!(smallest(&ladder, call), expected, "{call:?}");
        }
    }

    #[test]
    fn a_sliding_window_has_no_more_blocks_than_rows_see() {
        let of = |span| StateKind::Positions { span };
        let extent = |span| StepShape::Fixed(step(4, 1000, 1)).extent(StepAxis::Window(of(span))).unwrap();
        assert_eq!([Span::Full, Span::Window(65), Span::Window(66)].map(extent), [1024, 128, 192]);
        assert_eq!(StepShape::Any.extent(StepAxis::Window(of(Span::Full))), None);
        assert_eq!(StepShape::Any.extent(StepAxis::Of(7)), Some(7));
    }
}
