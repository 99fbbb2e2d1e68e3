//! Mixers. Attention: projections, norms of heads, rotation, state, scores. Short convolutions:
//! projections, gates, taps.

use girih_graph::{Act, Op, Span, ValueId};
use girih_tensor::{Result, Shape};

use super::Assembly;
use crate::arch::{AttentionFacts, Rope, ShortConvFacts};

impl Assembly<'_> {
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
                let q =
                    self.rms_norm(&format!("{at}.q.normed"), &format!("{at}.q.norm"), q, size, epsilon)?;
                (q, self.rms_norm(&format!("{at}.k.normed"), &format!("{at}.k.norm"), k, size, epsilon)?)
            }
        };
        let (q, k) = match &attend.rope {
            None => (q, k),
            Some(rope) => {
                let q = self.rotate(&format!("{at}.q.rotated"), rope, q)?;
                (q, self.rotate(&format!("{at}.k.rotated"), rope, k)?)
            }
        };
        let (keys, values) = match span {
            Span::All => (k, v),
            Span::Full | Span::Window(_) => {
                let inner = [attend.kv_heads, size];
                (
                    self.kept(&format!("{at}.keys"), k, span, &inner),
                    self.kept(&format!("{at}.values"), v, span, &inner),
                )
            }
        };
        let op = Op::Attend { scale: attend.scale, span, softcap: attend.softcap };
        let mixed = self.graph.same(&format!("{at}.heads"), op, &[q, keys, values]);
        let flat = self.graph.shaped(&format!("{at}.flat"), Op::Reshape, &[mixed], &[attend.heads * size]);
        self.linear(&format!("{at}.o"), flat, [attend.heads * size, width], biases.o)
    }

    /// A gated short convolution of `x`: the products of two projections are convolved, and gated by
    /// a third one.
    pub(super) fn short_conv(&mut self, at: &str, conv: &ShortConvFacts, x: ValueId) -> Result<ValueId> {
        let (width, taps, product) = (self.facts.sizes.width, conv.taps, Op::gate(Act::Identity));
        let b = self.linear(&format!("{at}.b"), x, [width, width], false)?;
        let c = self.linear(&format!("{at}.c"), x, [width, width], false)?;
        let x = self.linear(&format!("{at}.x"), x, [width, width], false)?;
        let gated = self.graph.same(&format!("{at}.gated"), product, &[b, x]);
        let weight = self.weight(&format!("{at}.taps"), &[taps, width])?;
        let carried = self.graph.carried(&format!("{at}.carried"), Shape::matrix(taps - 1, width));
        let mixed = self.graph.same(&format!("{at}.convolved"), Op::ShortConv, &[gated, weight, carried]);
        let opened = self.graph.same(&format!("{at}.opened"), product, &[c, mixed]);
        self.linear(&format!("{at}.out"), opened, [width, width], false)
    }

    /// The state of all positions, after the rows `x` of this step are written to it.
    fn kept(&mut self, name: &str, x: ValueId, span: Span, inner: &[usize]) -> ValueId {
        let group = self.graph.group(span);
        let state = self.graph.state(name, inner, self.state, group);
        self.graph.write(x, state);
        state
    }

    /// A projection, reshaped to heads.
    fn heads(&mut self, name: &str, x: ValueId, [heads, size]: [usize; 2], bias: bool) -> Result<ValueId> {
        let flat = self.linear(name, x, [self.facts.sizes.width, heads * size], bias)?;
        Ok(self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[heads, size]))
    }

    fn rotate(&mut self, name: &str, rope: &Rope, x: ValueId) -> Result<ValueId> {
        let frequencies = self.weight(&rope.weight, &[rope.rotated / 2])?;
        let op = Op::Rope { pairing: rope.pairing, factor: rope.factor };
        Ok(self.graph.same(name, op, &[x, frequencies]))
    }
}
