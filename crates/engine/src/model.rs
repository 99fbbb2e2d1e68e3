//! The loaded model together with the record of what its state holds: whatever
//! runs the one also updates the other.

use girih_graph::backend::{Inputs, Range32};
use girih_graph::{Lane, Runner, Step, Watch};

use crate::Result;
use crate::cache::Cache;
use crate::schedule::Batch;

/// A runner and the cache over its blocks of state.
pub(crate) struct Model {
    runner: Box<dyn Runner>,
    cache: Cache,
}

impl Model {
    /// A runner whose state holds nothing yet.
    pub fn new(runner: Box<dyn Runner>) -> Model {
        let cache = Cache::new(runner.blocks());
        Model { runner, cache }
    }

    pub fn runner(&self) -> &dyn Runner {
        &*self.runner
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// See [`Cache::resume`].
    pub fn resume(&mut self, prompt: &[u32]) -> u32 {
        self.cache.resume(prompt)
    }

    /// Frees every block.
    pub fn forget(&mut self) {
        self.cache.truncate(0);
    }

    /// Runs those of `tokens` that stand at the positions of `batch`, which
    /// follow the held ones and are then held themselves.
    ///
    /// # Errors
    /// When state is short or the device fails; then nothing is held, because
    /// it is not known what the state holds.
    pub fn run(
        &mut self,
        tokens: &[u32],
        batch: Batch,
        output: &mut [f32],
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let tokens = &tokens[batch.positions.indexes()];
        let result = self.forward(tokens, batch, output, watch);
        match result {
            Ok(()) => self.cache.extend(tokens),
            Err(_) => self.forget(),
        }
        result
    }

    fn forward(
        &mut self,
        tokens: &[u32],
        batch: Batch,
        output: &mut [f32],
        watch: &mut dyn Watch,
    ) -> Result<()> {
        for (group, block) in self.cache.reserve(batch.positions.end)? {
            self.runner.state().zero(group, block);
        }
        let blocks = self.cache.blocks();
        let rows = Range32 { start: 0, end: batch.rows() };
        let lane =
            Lane { blocks: &blocks, position: batch.positions.start, rows, want: batch.want, spans: &[] };
        self.runner.step(Step { inputs: Inputs::Tokens(tokens), lanes: &[lane], output, watch })
    }
}
