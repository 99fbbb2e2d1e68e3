//! The feed-forward part.

use girih_graph::{Op, ValueId};
use girih_tensor::Result;

use super::Assembly;
use crate::arch::Ffn;

impl Assembly<'_> {
    /// The feed-forward part on `x`.
    pub(super) fn feed_forward(&mut self, at: &str, ffn: &Ffn, x: ValueId) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        match *ffn {
            Ffn::Gated { size, act, biases: [gate, up, down] } => {
                let gate = self.linear(&format!("{at}.gate"), x, [width, size], gate)?;
                let up = self.linear(&format!("{at}.up"), x, [width, size], up)?;
                let gated = self.graph.same(&format!("{at}.gated"), Op::Gate { act }, &[gate, up]);
                self.linear(&format!("{at}.down"), gated, [size, width], down)
            }
            Ffn::Plain { size, act, biases: [up, down] } => {
                let up = self.linear(&format!("{at}.up"), x, [width, size], up)?;
                let activated = self.graph.same(&format!("{at}.activated"), Op::Activate { act }, &[up]);
                self.linear(&format!("{at}.down"), activated, [size, width], down)
            }
        }
    }
}
