//! The loaded model together with its prefix cache: running a step updates both.

use girih_graph::backend::{Block, Range32, State};
use girih_graph::{BLOCK_POSITIONS, Output, Outputs, RangeFault, Runner, Sequence, Step, Watch};

use crate::cache::{PrefixCache, SequenceId, StateChange};
use crate::position_key::PositionKey;
use crate::prompt_content::StepContent;
use crate::step_inputs::{InputSource, InputValues};
use crate::{Error, ErrorKind, Result};

/// A runner and the prefix cache over its blocks of state.
pub(crate) struct CachedRunner {
    runner: Box<dyn Runner>,
    pub cache: PrefixCache<PositionKey>,
    sources: Vec<InputSource>,
}

/// The tokens of one sequence that a step runs.
pub(crate) struct StepTokens<'a> {
    pub sequence: SequenceId,
    /// They follow the tokens that the sequence has run; blocks are reserved for them.
    pub tokens: &'a [u32],
    /// The given rows and mutual spans among their positions, and their adapter.
    pub content: StepContent<'a>,
    /// Which of their rows are output rows.
    pub outputs: Outputs,
    /// A row of hidden states for each token, if the programs read these.
    pub hidden: &'a [f32],
}

/// A key or value of a step that the state cannot hold.
pub(crate) struct OutOfRange {
    /// The index of its sequence among those of the step.
    pub index: usize,
    /// The position of the first row that has one.
    pub position: u32,
    pub error: Error,
}

impl<'a> StepTokens<'a> {
    /// Tokens without given rows and mutual spans.
    pub fn plain(sequence: SequenceId, tokens: &'a [u32], outputs: Outputs) -> StepTokens<'a> {
        StepTokens { sequence, tokens, content: StepContent::default(), outputs, hidden: &[] }
    }
}

impl CachedRunner {
    /// Wraps a runner whose state is empty.
    ///
    /// # Errors
    /// When the engine cannot fill an input of the programs.
    pub fn new(runner: Box<dyn Runner>) -> Result<CachedRunner> {
        let kinds: Vec<_> = runner.groups().iter().map(|group| group.kind).collect();
        let cache = PrefixCache::new(&kinds, runner.blocks());
        let sources = InputSource::of(runner.inputs())?;
        Ok(CachedRunner { runner, cache, sources })
    }

    pub fn inner(&self) -> &dyn Runner {
        &*self.runner
    }

    /// The state of the sequences.
    pub fn state(&mut self) -> &mut dyn State {
        self.runner.state()
    }

    /// The results of the last step.
    pub fn output(&mut self) -> &mut dyn Output {
        self.runner.output()
    }

    /// Reserves blocks for the positions of a sequence up to `end`; `false` if the blocks do
    /// not suffice.
    ///
    /// # Errors
    /// When the device fails; then the sequence's state is undefined from the block of its next
    /// position on.
    pub fn reserve(&mut self, sequence: SequenceId, end: u32) -> Result<bool> {
        let Some(changes) = self.cache.reserve(sequence, end) else { return Ok(false) };
        self.change(changes)?;
        Ok(true)
    }

    /// Copies the carried values of a sequence whose next rows may be rejected, if a block is free for that.
    ///
    /// # Errors
    /// As [`CachedRunner::reserve`].
    pub fn copy_carried(&mut self, sequence: SequenceId) -> Result<()> {
        let changes = self.cache.copy_carried(sequence);
        self.change(changes)
    }

    fn change(&mut self, changes: Vec<StateChange>) -> Result<()> {
        let state = self.runner.state();
        for change in changes {
            let changed = match change {
                StateChange::Zero(group, block) => state.zero(group, block),
                StateChange::Copy { group, from, to } => state.copy(group, from, to),
            };
            changed.map_err(failed)?;
        }
        Ok(())
    }

    /// The number of rows, at most `max`, that fit after `end` without evicting anything.
    /// Blocks up to `end` are reserved.
    pub fn free_rows(&self, sequence: SequenceId, end: u32, max: u32) -> u32 {
        if self.cache.suffices(sequence, end + max) {
            return max;
        }
        max.min(end.next_multiple_of(BLOCK_POSITIONS as u32) - end)
    }

    /// As [`CachedRunner::run`], for one sequence.
    ///
    /// # Errors
    /// As [`CachedRunner::run`], and of the kind [`ErrorKind::OutOfRange`] when the state cannot hold a key
    /// or value.
    pub fn run_one(&mut self, pending: StepTokens<'_>, watch: &mut dyn Watch) -> Result<()> {
        match self.run(&[pending], watch)?.pop() {
            Some(OutOfRange { error, .. }) => Err(error),
            None => Ok(()),
        }
    }

    /// Runs one step, and waits for its results. Returns the sequences with a key or value that the
    /// state cannot hold: their state and their results are undefined from that position on.
    ///
    /// # Errors
    /// When the device fails; then the state of these sequences is undefined. The kind is
    /// [`ErrorKind::DeviceFailed`] unless the backend states another.
    pub fn run(&mut self, pending: &[StepTokens<'_>], watch: &mut dyn Watch) -> Result<Vec<OutOfRange>> {
        let blocks: Vec<Vec<&[Block]>> =
            pending.iter().map(|one| self.cache.sequence(one.sequence)).collect();
        let mut values = InputValues::default();
        let sequences: Vec<Sequence<'_>> = pending
            .iter()
            .zip(&blocks)
            .map(|(one, blocks)| {
                let position = self.cache.length(one.sequence);
                let start = values.push(one.tokens, &[], position, one.content.given.iter().copied());
                let count = one.tokens.len() as u32;
                values.push_content(&self.sources, &one.content, [start, position, count]);
                values.push_hidden(one.hidden);
                values.push_adapter(one.content.adapter, one.tokens.len());
                let rows = Range32 { start, end: start + one.tokens.len() as u32 };
                Sequence { blocks, position, rows, outputs: one.outputs, spans: &one.content.spans }
            })
            .collect();
        let step = Step { inputs: &values.inputs(&self.sources), sequences: &sequences, watch };
        self.runner.step(step).and_then(|()| self.runner.output().wait()).map_err(failed)?;
        let out_of_range = out_of_range(&self.runner.state().take_range_faults(), &sequences);
        for StepTokens { sequence, tokens, content, .. } in pending {
            self.cache.extend(*sequence, &content.keys(tokens));
        }
        Ok(out_of_range)
    }
}

/// The first fault of each sequence that has one.
fn out_of_range(faults: &[RangeFault], sequences: &[Sequence<'_>]) -> Vec<OutOfRange> {
    let first = |(index, sequence): (usize, &Sequence<'_>)| {
        let own = faults.iter().filter(|fault| sequence.rows.indexes().contains(&(fault.row as usize)));
        let fault = own.min_by_key(|fault| fault.row)?;
        let position = sequence.position + fault.row - sequence.rows.start;
        Some(OutOfRange { index, position, error: fault.error(position) })
    };
    if faults.is_empty() { Vec::new() } else { sequences.iter().enumerate().filter_map(first).collect() }
}

/// The error of a device, of a kind other than `Other`.
pub(crate) fn failed(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Other => Error::with_kind(ErrorKind::DeviceFailed, error.to_string()),
        _ => error,
    }
}
