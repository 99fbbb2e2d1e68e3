//! The mixer of Mamba-2: projections, convolutions, the scan, gate and norm, output projection.

use girih_graph::{Act, Op, ValueId};
use girih_tensor::{Result, Shape};

use super::Assembly;
use crate::arch::{SsmFacts, SsmNormFacts};

impl Assembly<'_> {
    /// The mixer of Mamba-2 on `x`.
    pub(super) fn ssm(&mut self, at: &str, ssm: &SsmFacts, x: ValueId) -> Result<ValueId> {
        let (width, inner, columns) = (self.facts.sizes.width, ssm.inner(), ssm.columns());
        let read = self.scaled(&format!("{at}.read"), ssm.input_scale, x);
        let mut parts = Vec::with_capacity(5);
        let sizes = [("z", inner), ("x", inner), ("b", columns), ("c", columns), ("dt", ssm.heads)];
        for (part, size) in sizes {
            parts.push(self.linear(&format!("{at}.{part}"), read, [width, size], ssm.biases)?);
        }
        for (index, (part, _)) in sizes.iter().enumerate() {
            let factor = ssm.scales.map(|scales| scales[index]).filter(|factor| *factor != 1.0);
            parts[index] = self.scaled(&format!("{at}.{part}.scaled"), factor, parts[index]);
        }
        for (index, extents) in
            [(1, [ssm.heads, ssm.head_size]), (2, [ssm.groups, ssm.state]), (3, [ssm.groups, ssm.state])]
        {
            let name = format!("{at}.{}", sizes[index].0);
            let taps = [ssm.taps, sizes[index].1];
            let convolved = self.convolved(&name, parts[index], taps, ssm.tap_biases, ssm.act)?;
            parts[index] = self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[convolved], &extents);
        }
        let [z, x, b, c, dt] = parts[..] else { unreachable!("there are five parts") };
        let mut operands = vec![x, dt, b, c];
        for vector in ["a", "d", "step.bias"] {
            operands.push(self.vector_of_rows(&format!("{at}.{vector}"), ssm.heads, 1)?);
        }
        let state = Shape::new(&[ssm.heads, ssm.head_size, ssm.state])?;
        operands.push(self.graph.carried(&format!("{at}.state"), state));
        let op = Op::SsmScan { least: ssm.least, most: ssm.most };
        let scanned = self.graph.same(&format!("{at}.scanned"), op, &operands);
        let flat = self.graph.shaped(&format!("{at}.scanned.flat"), Op::Reshape, &[scanned], &[inner]);
        let gated = self.gated_and_normed(at, ssm, flat, z)?;
        let out = self.linear(&format!("{at}.out"), gated, [inner, width], ssm.output_bias)?;
        Ok(self.scaled(&format!("{at}.out.scaled"), ssm.output_scale, out))
    }

    /// The results of a scan times the activated gate `z`, with a norm of groups before or after it, if there is
    /// one.
    fn gated_and_normed(&mut self, at: &str, ssm: &SsmFacts, x: ValueId, z: ValueId) -> Result<ValueId> {
        let gate = |assembly: &mut Self, x| {
            assembly.graph.same(&format!("{at}.scanned.gated"), Op::gate(Act::Silu), &[z, x])
        };
        match ssm.norm {
            None => Ok(gate(self, x)),
            Some(SsmNormFacts { epsilon, first: false }) => {
                let gated = gate(self, x);
                self.norm_of_groups(at, ssm, gated, epsilon)
            }
            Some(SsmNormFacts { epsilon, first: true }) => {
                let normed = self.norm_of_groups(at, ssm, x, epsilon)?;
                Ok(gate(self, normed))
            }
        }
    }

    fn norm_of_groups(&mut self, at: &str, ssm: &SsmFacts, x: ValueId, epsilon: f32) -> Result<ValueId> {
        let (inner, name) = (ssm.inner(), format!("{at}.normed"));
        let size = inner / ssm.groups;
        let weight = self.vector_of_rows(&format!("{at}.norm.weight"), ssm.groups, size)?;
        if ssm.groups == 1 {
            return Ok(self.graph.same(&name, Op::Norm { epsilon }, &[x, weight]));
        }
        let groups = self.graph.shaped(&format!("{at}.groups"), Op::Reshape, &[x], &[ssm.groups, size]);
        let normed = self.graph.same(&format!("{at}.groups.normed"), Op::Norm { epsilon }, &[groups, weight]);
        Ok(self.graph.shaped(&name, Op::Reshape, &[normed], &[inner]))
    }

    /// A vector that a container may store as a matrix of `rows` rows.
    fn vector_of_rows(&mut self, name: &str, rows: usize, columns: usize) -> Result<ValueId> {
        let whole = rows * columns;
        let dtype = match self.weights.stored_type(name, &[rows, columns]) {
            Ok(dtype) if dtype.tile() == (1, 1) => dtype,
            _ => self.weights.stored_type(name, &[whole])?,
        };
        Ok(self.graph.weight(name, Shape::vector(whole), dtype))
    }

    /// `x` times a factor, if there is one.
    pub(super) fn scaled(&mut self, name: &str, factor: Option<f32>, x: ValueId) -> ValueId {
        match factor {
            None => x,
            Some(factor) => self.graph.same(name, Op::Scale { factor }, &[x]),
        }
    }
}
