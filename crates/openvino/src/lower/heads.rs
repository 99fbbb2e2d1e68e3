//! Ops of heads, beside attention.

use girih_graph::{Act, ValueId};
use girih_tensor::Result;

use super::lowering::GraphLowering;
use crate::ir::layer;

impl GraphLowering<'_> {
    pub(super) fn concat(&mut self, a: ValueId, b: ValueId, y: ValueId) -> Result<()> {
        let (a, b) = (self.rows(a)?, self.rows(b)?);
        let port = self.layer(layer("Concat", 1), "axis=\"-1\"", &[a, b]);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn gate_heads(&mut self, act: Act, gate: ValueId, x: ValueId, y: ValueId) -> Result<()> {
        let heads = self.inner(gate)[0] as i64;
        let (gate, x) = (self.rows(gate)?, self.rows(x)?);
        let gate = self.activated(act, gate);
        let gate = self.shaped(gate, &[0, 0, heads, 1]);
        let port = self.binary("Multiply", gate, x);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn mix_heads(&mut self, weights: ValueId, x: ValueId, y: ValueId) -> Result<()> {
        let heads = self.inner(weights)[0] as i64;
        let (weights, x) = (self.rows(weights)?, self.rows(x)?);
        let weights = self.shaped(weights, &[0, 0, heads, 1]);
        let products = self.binary("Multiply", weights, x);
        let axis = self.model.integers(&[2]);
        let port = self.layer(layer("ReduceSum", 1), "keep_dims=\"false\"", &[products, axis]);
        self.set_rows(y, port);
        Ok(())
    }

    /// Heads first, so that each head has its matrix.
    pub(super) fn linear_heads(&mut self, x: ValueId, weight: ValueId, y: ValueId) -> Result<()> {
        let heads = self.heads(x)?;
        let weight = self.matrices(weight)?;
        let port =
            self.layer(layer("MatMul", 1), "transpose_a=\"false\" transpose_b=\"true\"", &[heads, weight]);
        self.set_heads(y, port);
        Ok(())
    }
}
