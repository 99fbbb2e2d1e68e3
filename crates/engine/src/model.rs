//! The loaded model together with the record of what its state holds: whatever
//! runs the one also updates the other.

use girih_graph::backend::{Block, Inputs, Range32};
use girih_graph::{Lane, Runner, Step, Want, Watch};

use crate::Result;
use crate::cache::{Cache, Change, SequenceId};

/// A runner and the cache over its blocks of state.
pub(crate) struct Model {
    runner: Box<dyn Runner>,
    pub cache: Cache,
}

/// Tokens that a step runs at the end of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub sequence: SequenceId,
    /// They follow what the sequence has run, and room is reserved for them.
    pub tokens: &'a [u32],
    /// Which of their rows leave the program.
    pub want: Want,
}

impl Stretch<'_> {
    fn wanted(&self) -> u32 {
        self.want.count(self.tokens.len() as u32)
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

    /// Runs one step. `output` receives the wanted rows, one after another.
    ///
    /// # Errors
    /// When the device fails; then it is not known what the state of these
    /// sequences holds.
    pub fn run(&mut self, parts: &[Stretch<'_>], output: &mut [f32], watch: &mut dyn Watch) -> Result<()> {
        let tokens: Vec<u32> = parts.iter().flat_map(|part| part.tokens).copied().collect();
        let blocks: Vec<Vec<&[Block]>> = parts.iter().map(|part| self.cache.lane(part.sequence)).collect();
        let mut end = 0;
        let lanes: Vec<Lane<'_>> = parts
            .iter()
            .zip(&blocks)
            .map(|(part, blocks)| {
                let rows = Range32 { start: end, end: end + part.tokens.len() as u32 };
                end = rows.end;
                let position = self.cache.length(part.sequence);
                Lane { blocks, position, rows, want: part.want, spans: &[] }
            })
            .collect();
        let wanted: u32 = parts.iter().map(Stretch::wanted).sum();
        let output = &mut output[..wanted as usize * self.runner.width()];
        self.runner.step(Step { inputs: Inputs::Tokens(&tokens), lanes: &lanes, output, watch })?;
        parts.iter().for_each(|part| self.cache.extend(part.sequence, part.tokens));
        Ok(())
    }
}
