//! Attention: projections, norms of heads, rotation, state, scores.

use girih_graph::{Op, ValueId};
use girih_tensor::Result;

use super::Build;
use crate::arch::{AttentionFacts, Rope};

impl Build<'_> {
    /// Attention on `x`, from the input projections to the output projection.
    pub(super) fn attend(&mut self, at: &str, attend: &AttentionFacts, x: ValueId) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let (size, span) = (attend.head_size, attend.span);
        let biases = attend.biases;
        let q = self.heads(&format!("{at}.q"), x, [attend.heads, size], biases.q)?;
        let k = self.heads(&format!("{at}.k"), x, [attend.kv_heads, size], biases.k)?;
        let v = self.heads(&format!("{at}.v"), x, [attend.kv_heads, size], biases.v)?;
        let (q, k) = match attend.qk_norm {
            None => (q, k),
            Some(epsilon) => {
                let q = self.norm(&format!("{at}.q.normed"), &format!("{at}.q.norm"), q, size, epsilon)?;
                (q, self.norm(&format!("{at}.k.normed"), &format!("{at}.k.norm"), k, size, epsilon)?)
            }
        };
        let q = self.rotate(&format!("{at}.q.rotated"), &attend.rope, q, size)?;
        let k = self.rotate(&format!("{at}.k.rotated"), &attend.rope, k, size)?;
        let group = self.graph.group(span);
        let inner = [attend.kv_heads, size];
        let keys = self.graph.state(&format!("{at}.keys"), &inner, self.state, group);
        let values = self.graph.state(&format!("{at}.values"), &inner, self.state, group);
        self.graph.write(k, keys);
        self.graph.write(v, values);
        let op = Op::Attend { scale: attend.scale, span, softcap: attend.softcap };
        let mixed = self.graph.same(&format!("{at}.heads"), op, &[q, keys, values]);
        let flat = self.graph.shaped(&format!("{at}.flat"), Op::Reshape, &[mixed], &[attend.heads * size]);
        self.linear(&format!("{at}.o"), flat, [attend.heads * size, width], biases.o)
    }

    /// A projection, reshaped to heads.
    fn heads(&mut self, name: &str, x: ValueId, [heads, size]: [usize; 2], bias: bool) -> Result<ValueId> {
        let flat = self.linear(name, x, [self.facts.sizes.width, heads * size], bias)?;
        Ok(self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[heads, size]))
    }

    fn rotate(&mut self, name: &str, rope: &Rope, x: ValueId, size: usize) -> Result<ValueId> {
        let frequencies = self.weight(&format!("rope.{}", rope.name), &[size / 2])?;
        Ok(self.graph.same(name, Op::Rope { pairing: rope.pairing }, &[x, frequencies]))
    }
}
