//! The choice of the positions that a row of latent attention reads.

use girih_graph::{Op, SELECTION_POSITIONS, ValueId};
use girih_tensor::{Error, Result};

use super::Assembly;
use crate::arch::{AttentionFacts, IndexerFacts};

impl Assembly<'_> {
    /// The selections of rows `x`, whose queries are made of `of_q`; or those of the last layer that made some.
    pub(super) fn selected(
        &mut self,
        at: &str,
        attend: &AttentionFacts,
        indexer: IndexerFacts,
        [x, of_q]: [ValueId; 2],
        q_width: usize,
    ) -> Result<ValueId> {
        let IndexerFacts { heads, size, best, epsilon, chooses, .. } = indexer;
        if !chooses {
            return self.selection.ok_or_else(|| {
                Error::new(format!("'{at}' needs the choice of an earlier layer, of which none chooses"))
            });
        }
        let (at, width) = (format!("{at}.indexer"), self.facts.sizes.width);
        let q = self.linear(&format!("{at}.q"), of_q, [q_width, heads * size], false)?;
        let q = self.index_heads(&format!("{at}.q"), attend, indexer, q, heads)?;
        let k = self.linear(&format!("{at}.k"), x, [width, size], false)?;
        let mut operands = vec![k];
        for vector in ["weight", "bias"] {
            operands.push(self.weight(&format!("{at}.k.norm.{vector}"), &[size])?);
        }
        let k = self.graph.same(&format!("{at}.k.normed"), Op::LayerNorm { epsilon }, &operands);
        let k = self.index_heads(&format!("{at}.k"), attend, indexer, k, 1)?;
        let keys = self.kept(&format!("{at}.keys"), k, attend.span, [1, size]);
        let q = self.spread(&format!("{at}.q"), q, attend.span, &[size]);
        let weights = self.linear(&format!("{at}.weights"), x, [width, heads], false)?;
        let numbers = self.context.div_ceil(SELECTION_POSITIONS);
        let op = Op::SelectKeys { best: best as u32 };
        let selection = self.graph.shaped(&format!("{at}.selected"), op, &[q, weights, keys], &[numbers]);
        self.selection = Some(selection);
        Ok(selection)
    }

    /// Queries or keys as heads, whose first numbers are rotated.
    fn index_heads(
        &mut self,
        name: &str,
        attend: &AttentionFacts,
        indexer: IndexerFacts,
        x: ValueId,
        heads: usize,
    ) -> Result<ValueId> {
        let x = self.as_heads(name, x, [heads, indexer.size]);
        let Some(rope) = &attend.rope else { return Ok(x) };
        let frequencies = self.weight(&rope.weight, &[rope.rotated / 2])?;
        let op = Op::Rope { pairing: indexer.pairing, factor: rope.factor };
        Ok(self.graph.same(&format!("{name}.rotated"), op, &[x, frequencies]))
    }
}
