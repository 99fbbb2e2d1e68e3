//! Keys and values in variables of the model, written as OpenVINO fuses them with attention.

use girih_graph::ValueId;
use girih_tensor::{DType, Result};

use super::attend::AttendRule;
use super::lowering::{GraphLowering, ParameterSource};
use crate::ir::{Port, Precision, layer};
use crate::step_shape::StepAxis;

impl GraphLowering<'_> {
    /// Appends new rows, rounded to the type of the state, to those that a variable holds. What is beyond the range of the
    /// type can be told from the largest magnitudes of the rows before they are rounded.
    pub(super) fn hide(&mut self, rows: Port, rounded: Port, state: ValueId) -> Port {
        if self.graph.value(state).dtype == DType::F16 {
            let magnitudes = self.layer(layer("Abs", 1), "", &[rows]);
            let axes = self.model.integers(&[1, 3]);
            let largest = self.layer(layer("ReduceMax", 1), "keep_dims=\"false\"", &[magnitudes, axes]);
            self.largest.push((state, largest));
        }
        let inner = self.inner(state);
        let zero = self.model.float(0.0);
        let nothing = self.model.integers(&[1, inner[0] as i64, 0, inner[1] as i64]);
        let nothing = self.layer(layer("Broadcast", 3), "mode=\"numpy\"", &[zero, nothing]);
        let variable = format!("variable_id=\"s{}\"", state.0);
        let kind =
            format!("{variable} variable_type=\"f32\" variable_shape=\"?,{},?,{}\"", inner[0], inner[1]);
        let held = self.layer(layer("ReadValue", 6), &kind, &[nothing]);
        let beams = self.parameter(ParameterSource::Beams, Precision::I32, &[StepAxis::Lanes]);
        let axis = self.model.integer(0);
        let held = self.layer(layer("Gather", 8), "batch_dims=\"0\"", &[held, beams, axis]);
        let all = self.layer(layer("Concat", 1), "axis=\"-2\"", &[held, rounded]);
        self.layer(layer("Assign", 6), &variable, &[all]);
        all
    }

    /// Attention to all that variables hold, which OpenVINO appends to in the same kernel. It fuses keys that are repeated for
    /// the heads that share them, and then does not repeat them.
    pub(super) fn attend_hidden(
        &mut self,
        rule: AttendRule,
        [q, keys, values]: [ValueId; 3],
        y: ValueId,
    ) -> Result<()> {
        let (heads, groups) = (self.inner(q)[0], self.inner(keys)[0]);
        let mask = self.masks(keys, rule.span, 1)[0];
        let [keys, values] = [keys, values].map(|id| -> Result<Port> {
            let size = self.inner(id)[1];
            let all = self.seen(id)?[0];
            Ok(self.repeated(all, heads, groups, size))
        });
        let rows = self.heads(q)?;
        let result = self.fused([rows, keys?, values?], mask, rule.scale);
        self.set_heads(y, result);
        Ok(())
    }

    /// Keys or values of groups, once for each head.
    fn repeated(&mut self, x: Port, heads: usize, groups: usize, size: usize) -> Port {
        if heads == groups {
            return x;
        }
        let axis = self.model.integers(&[2]);
        let apart = self.layer(layer("Unsqueeze", 1), "", &[x, axis]);
        let shape = self.model.integers(&[1, 1, (heads / groups) as i64, 1, 1]);
        let repeated = self.layer(layer("Broadcast", 3), "mode=\"bidirectional\"", &[apart, shape]);
        self.shaped(repeated, &[0, heads as i64, -1, size as i64])
    }
}
