//! Norms of the innermost dimension.

use girih_graph::ValueId;
use girih_tensor::Result;

use super::Lowering;
use crate::ir::{Port, layer};

impl Lowering<'_> {
    /// The layers that OpenVINO fuses to one norm.
    pub(super) fn norm(&mut self, epsilon: f32, x: ValueId, weight: Option<ValueId>, y: ValueId) -> Result<()> {
        let inner = self.inner(x);
        let x = self.rows(x)?;
        let two = self.model.float(2.0);
        let squares = self.binary("Power", x, two);
        let last = self.model.integers(&[-1]);
        let mean = self.layer(layer("ReduceMean", 1), "keep_dims=\"true\"", &[squares, last]);
        let epsilon = self.model.float(epsilon);
        let sum = self.binary("Add", mean, epsilon);
        let root = self.layer(layer("Sqrt", 1), "", &[sum]);
        let one = self.model.float(1.0);
        let reciprocal = self.layer(layer("Divide", 1), "auto_broadcast=\"numpy\" m_pythondiv=\"true\"", &[one, root]);
        let normed = self.binary("Multiply", x, reciprocal);
        let port = self.times(normed, weight, &inner)?;
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn layer_norm(&mut self, epsilon: f32, x: ValueId, [weight, bias]: [Option<ValueId>; 2], y: ValueId) -> Result<()> {
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

    /// Rows times a weight of their last extents, if there is one.
    fn times(&mut self, x: Port, weight: Option<ValueId>, inner: &[usize]) -> Result<Port> {
        let Some(weight) = weight else { return Ok(x) };
        let weight = self.vector(weight, inner)?;
        Ok(self.binary("Multiply", x, weight))
    }
}
