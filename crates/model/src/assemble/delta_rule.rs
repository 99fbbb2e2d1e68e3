//! The gated delta rule: projections, convolutions, unit vectors, the rule, a gated norm.

use girih_graph::{Act, Op, ValueId};
use girih_tensor::{Result, Shape};

use super::Assembly;
use crate::arch::DeltaRuleFacts;

/// What is added to the sum of squares by which queries and keys are divided: transformers' `l2norm` has it as a
/// constant, as has the library of kernels that the models were trained with.
const UNIT_EPSILON: f32 = 1e-6;

impl Assembly<'_> {
    /// The gated delta rule on `x`, from the input projections to the output projection.
    pub(super) fn delta_rule(&mut self, at: &str, delta: &DeltaRuleFacts, x: ValueId) -> Result<ValueId> {
        let at = format!("{at}.delta");
        let (width, heads) = (self.facts.sizes.width, delta.value_heads);
        let DeltaRuleFacts { key_size, value_size, .. } = *delta;
        // Queries are also divided by the root of their size, as scores of attention are.
        let root = (key_size as f32).sqrt();
        let q = self.unit_heads(&format!("{at}.q"), delta, x, 1.0 / (root * root))?;
        let k = self.unit_heads(&format!("{at}.k"), delta, x, 1.0 / root)?;
        let v = self.projected_and_convolved(&format!("{at}.v"), delta, x, delta.values())?;
        let v = self.graph.shaped(&format!("{at}.v.heads"), Op::Reshape, &[v], &[heads, value_size]);
        let beta = self.linear(&format!("{at}.beta"), x, [width, heads], false)?;
        let mut beta =
            self.graph.same(&format!("{at}.beta.opened"), Op::Activate { act: Act::Sigmoid }, &[beta]);
        if delta.doubled {
            beta = self.graph.same(&format!("{at}.beta.doubled"), Op::Scale { factor: 2.0 }, &[beta]);
        }
        let dt = self.linear(&format!("{at}.dt"), x, [width, heads], true)?;
        let dt = self.graph.same(&format!("{at}.dt.positive"), Op::Activate { act: Act::Softplus }, &[dt]);
        let a = self.weight(&format!("{at}.a"), &[heads])?;
        let shape = Shape::new(&[heads, key_size, value_size])?;
        let carried = self.graph.carried(&format!("{at}.carried"), shape);
        let operands = [q, k, v, beta, dt, a, carried];
        let op = Op::DeltaRule { sharing: delta.sharing };
        let mixed = self.graph.shaped(&format!("{at}.heads"), op, &operands, &[heads, value_size]);
        let norm = format!("{at}.norm");
        let normed = self.rms_norm(&format!("{at}.normed"), &norm, mixed, value_size, delta.norm_epsilon)?;
        let values = delta.values();
        let flat = self.graph.shaped(&format!("{at}.flat"), Op::Reshape, &[normed], &[values]);
        let z = self.linear(&format!("{at}.z"), x, [width, values], false)?;
        let gated = self.graph.same(&format!("{at}.gated"), Op::gate(Act::Silu), &[z, flat]);
        self.linear(&format!("{at}.out"), gated, [values, width], false)
    }

    /// Queries or keys: each head divided by its length, and multiplied by a factor times the root of its size.
    fn unit_heads(&mut self, name: &str, delta: &DeltaRuleFacts, x: ValueId, factor: f32) -> Result<ValueId> {
        let DeltaRuleFacts { key_heads, key_size, .. } = *delta;
        let rows = self.projected_and_convolved(name, delta, x, delta.keys())?;
        let heads = self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[rows], &[key_heads, key_size]);
        // The mean of squares is their sum divided by the size.
        let epsilon = UNIT_EPSILON / key_size as f32;
        let normed = self.graph.same(&format!("{name}.normed"), Op::Norm { epsilon }, &[heads]);
        Ok(self.graph.same(&format!("{name}.unit"), Op::Scale { factor }, &[normed]))
    }

    /// A projection to `columns` columns, each convolved with taps of its own, and activated.
    fn projected_and_convolved(
        &mut self,
        name: &str,
        delta: &DeltaRuleFacts,
        x: ValueId,
        columns: usize,
    ) -> Result<ValueId> {
        let x = self.linear(name, x, [self.facts.sizes.width, columns], false)?;
        self.convolved(name, x, [delta.taps, columns], false, delta.act)
    }
}
