//! The feed-forward part.

use girih_graph::{Act, Op, ValueId};
use girih_tensor::Result;

use super::Build;

impl Build<'_> {
    /// `down(act(gate(x)) · up(x))`; `biases` of gate, up and down.
    pub(super) fn gated(
        &mut self,
        at: &str,
        size: usize,
        act: Act,
        biases: [bool; 3],
        x: ValueId,
    ) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let gate = self.linear(&format!("{at}.gate"), x, [width, size], biases[0])?;
        let up = self.linear(&format!("{at}.up"), x, [width, size], biases[1])?;
        let gated = self.graph.same(&format!("{at}.gated"), Op::Gate { act }, &[gate, up]);
        self.linear(&format!("{at}.down"), gated, [size, width], biases[2])
    }
}
