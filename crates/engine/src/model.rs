//! The loaded model together with the record of what its state holds: whatever
//! runs the one also updates the other.

use girih_graph::backend::{Block, Inputs, Range32};
use girih_graph::{Outputs, Runner, Sequence, Step, Watch};

use crate::Result;
use crate::cache::{Cache, Change, SequenceId};

/// A runner and the cache over its blocks of state.
pub(crate) struct Model {
    runner: Box<dyn Runner>,
    pub cache: Cache,
}

/// Tokens that a step runs at the end of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct PendingTokens<'a> {
    pub sequence: SequenceId,
    /// They follow what the sequence has run, and room is reserved for them.
    pub tokens: &'a [u32],
    /// Which of their rows leave the program.
    pub outputs: Outputs,
}

impl PendingTokens<'_> {
    fn output_rows(&self) -> u32 {
        self.outputs.count(self.tokens.len() as u32)
    }
}

impl Model {
    /// A runner whose state holds nothing yet.
    pub fn new(runner: Box<dyn Runner>) -> Model {
        let spans: Vec<_> = runner.groups().iter().map(|group| group.span).collect();
        let cache = Cache::new(&spans, runner.blocks());
        Model { runner, cache }
    }

    pub fn runner(&self) -> &dyn Runner {
        &*self.runner
    }

    /// Makes room for the positions of a sequence up to `end`; `false` when the
    /// blocks do not suffice.
    #[must_use]
    pub fn reserve(&mut self, sequence: SequenceId, end: u32) -> bool {
        let Some(changes) = self.cache.reserve(sequence, end) else { return false };
        let state = self.runner.state();
        for change in changes {
            match change {
                Change::Zero(group, block) => state.zero(group, block),
                Change::Copy { group, from, to } => state.copy(group, from, to),
            }
        }
        true
    }

    /// Runs one step. `output` receives the output rows, one after another.
    ///
    /// # Errors
    /// When the device fails; then it is not known what the state of these
    /// sequences holds.
    pub fn run(
        &mut self,
        parts: &[PendingTokens<'_>],
        output: &mut [f32],
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let tokens: Vec<u32> = parts.iter().flat_map(|part| part.tokens).copied().collect();
        let blocks: Vec<Vec<&[Block]>> =
            parts.iter().map(|part| self.cache.sequence(part.sequence)).collect();
        let mut end = 0;
        let sequences: Vec<Sequence<'_>> = parts
            .iter()
            .zip(&blocks)
            .map(|(part, blocks)| {
                let rows = Range32 { start: end, end: end + part.tokens.len() as u32 };
                end = rows.end;
                let position = self.cache.length(part.sequence);
                Sequence { blocks, position, rows, outputs: part.outputs, spans: &[] }
            })
            .collect();
        let output_rows: u32 = parts.iter().map(PendingTokens::output_rows).sum();
        let output = &mut output[..output_rows as usize * self.runner.width()];
        self.runner.step(Step { inputs: Inputs::Tokens(&tokens), sequences: &sequences, output, watch })?;
        parts.iter().for_each(|part| self.cache.extend(part.sequence, part.tokens));
        Ok(())
    }
}
