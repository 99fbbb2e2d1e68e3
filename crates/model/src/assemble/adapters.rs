//! Adapters: pairs of small matrices of a layer, whose product is added to a matrix that layers share.

use girih_graph::{Op, ValueId};
use girih_tensor::Result;

use super::Assembly;

/// The adapters of the projections of a part of a layer.
#[derive(Clone, Copy)]
pub(super) struct Adapters {
    /// The number of rows of the first matrix of each, and of columns of the second one.
    pub rank: usize,
}

/// The rows that attention projects.
#[derive(Clone, Copy)]
pub(super) struct AttentionRows {
    /// The rows.
    pub x: ValueId,
    /// Their size.
    pub width: usize,
    /// The adapters of queries, keys and values, if there are any.
    pub adapters: Option<Adapters>,
}

impl Assembly<'_> {
    /// Rows of hidden states, which are projected without adapters.
    pub(super) fn attention_rows(&self, x: ValueId) -> AttentionRows {
        AttentionRows { x, width: self.facts.sizes.width, adapters: None }
    }

    /// A projection of `x`, and what an adapter adds to it.
    pub(super) fn adapted(
        &mut self,
        name: &str,
        x: ValueId,
        [inputs, outputs]: [usize; 2],
        (bias, adapters): (bool, Option<Adapters>),
    ) -> Result<ValueId> {
        let made = self.linear(name, x, [inputs, outputs], bias)?;
        let Some(Adapters { rank }) = adapters else { return Ok(made) };
        let narrow = self.linear(&format!("{name}.adapter.in"), x, [inputs, rank], false)?;
        let added = self.linear(&format!("{name}.adapter.out"), narrow, [rank, outputs], false)?;
        Ok(self.graph.same(&format!("{name}.adapted"), Op::Add, &[made, added]))
    }
}
