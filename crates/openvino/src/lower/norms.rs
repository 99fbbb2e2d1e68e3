//! Norms of the innermost dimension.

use girih_graph::ValueId;
use girih_tensor::Result;

use super::lowering::{DIVIDE, GraphLowering};
use crate::ir::{Port, layer};

impl GraphLowering<'_> {
    /// The layers that OpenVINO fuses to one norm.
    pub(super) fn norm(
        &mut self,
        epsilon: f32,
        x: ValueId,
        weight: Option<ValueId>,
        y: ValueId,
    ) -> Result<()> {
        let inner = self.inner(x);
        let x = self.rows(x)?;
        let two = self.model.float(2.0);
        let squares = self.binary("Power", x, two);
        let mean = self.mean(squares);
        let epsilon = self.model.float(epsilon);
        let sum = self.binary("Add", mean, epsilon);
        let root = self.layer(layer("Sqrt", 1), "", &[sum]);
        let one = self.model.float(1.0);
        let reciprocal = self.layer(layer("Divide", 1), DIVIDE, &[one, root]);
        let normed = self.binary("Multiply", x, reciprocal);
        let port = self.times(normed, weight, &inner)?;
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn layer_norm(
        &mut self,
        epsilon: f32,
        x: ValueId,
        [weight, bias]: [Option<ValueId>; 2],
        y: ValueId,
    ) -> Result<()> {
        let inner = self.inner(x);
        let x = self.rows(x)?;
        let last = self.model.integers(&[-1]);
        let attributes = format!("eps=\"{epsilon:?}\" normalize_variance=\"true\" eps_mode=\"INSIDE_SQRT\"");
        let normed = self.layer(layer("MVN", 6), &attributes, &[x, last]);
        let mut port = self.times(normed, weight, &inner)?;
        if let Some(bias) = bias {
            let bias = self.vector(bias, &inner)?;
            port = self.binary("Add", port, bias);
        }
        self.set_rows(y, port);
        Ok(())
    }

    /// `x · √mean(like²) / max(√mean(x²), √least)`.
    pub(super) fn match_rms(&mut self, least: f32, x: ValueId, like: ValueId, y: ValueId) -> Result<()> {
        let (x, like) = (self.rows(x)?, self.rows(like)?);
        let [own, other] = [x, like].map(|x| {
            let squares = self.binary("Multiply", x, x);
            let mean = self.mean(squares);
            self.layer(layer("Sqrt", 1), "", &[mean])
        });
        let least = self.model.float(least.sqrt());
        let own = self.binary("Maximum", own, least);
        let factor = self.layer(layer("Divide", 1), DIVIDE, &[other, own]);
        let port = self.binary("Multiply", x, factor);
        self.set_rows(y, port);
        Ok(())
    }

    /// `max(x − mean(x) − deviations · √variance(x), 0)`.
    pub(super) fn sparsify(&mut self, deviations: f32, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let mean = self.mean(x);
        let distance = self.binary("Subtract", x, mean);
        let squares = self.binary("Multiply", distance, distance);
        let variance = self.mean(squares);
        let deviation = self.layer(layer("Sqrt", 1), "", &[variance]);
        let margin = self.scaled(deviation, deviations);
        let cutoff = self.binary("Add", mean, margin);
        let above = self.binary("Subtract", x, cutoff);
        let port = self.layer(layer("ReLU", 1), "", &[above]);
        self.set_rows(y, port);
        Ok(())
    }

    /// The means of the innermost dimension.
    fn mean(&mut self, x: Port) -> Port {
        let last = self.model.integers(&[-1]);
        self.layer(layer("ReduceMean", 1), "keep_dims=\"true\"", &[x, last])
    }

    /// Rows times a weight of their last extents, if there is one.
    fn times(&mut self, x: Port, weight: Option<ValueId>, inner: &[usize]) -> Result<Port> {
        let Some(weight) = weight else { return Ok(x) };
        let weight = self.vector(weight, inner)?;
        Ok(self.binary("Multiply", x, weight))
    }
}
