//! Short convolutions, and the rows that sequences carry.

use girih_graph::ValueId;
use girih_tensor::Result;

use super::lowering::{GraphLowering, ParameterSource, ResultMeaning};
use crate::ir::{Precision, layer};
use crate::step_shape::StepAxis;

impl GraphLowering<'_> {
    /// The sum of slices of the carried rows and those of the step, each times its taps. All of these rows are a result, of
    /// which the host keeps those that sequences carry.
    pub(super) fn short_conv(
        &mut self,
        x: ValueId,
        taps: ValueId,
        carried: ValueId,
        bias: Option<ValueId>,
        y: ValueId,
    ) -> Result<()> {
        let &[kept, width] = self.graph.value(carried).shape.extents() else {
            return Err(self.misplaced(carried));
        };
        let x = self.rows(x)?;
        let before = ParameterSource::Carried(carried);
        let before = self.parameter(
            before,
            Precision::F32,
            &[StepAxis::Lanes, StepAxis::Of(kept), StepAxis::Of(width)],
        );
        let held = self.layer(layer("Concat", 1), "axis=\"1\"", &[before, x]);
        self.named_result(ResultMeaning::Carried(carried), held);
        let taps = self.vector(taps, &[kept + 1, width])?;
        let mut sum = None;
        for tap in 0..=kept {
            // The slice that ends where the step does has the largest end that there is.
            let end = if tap == kept { i64::MAX } else { tap as i64 - kept as i64 };
            let [start, end, one, axis] =
                [tap as i64, end, 1, 1].map(|number| self.model.integers(&[number]));
            let rows = self.layer(layer("Slice", 8), "", &[held, start, end, one, axis]);
            let (index, axis) = (self.model.integer(tap as i64), self.model.integer(0));
            let own = self.layer(layer("Gather", 8), "batch_dims=\"0\"", &[taps, index, axis]);
            let product = self.binary("Multiply", rows, own);
            sum = Some(sum.map_or(product, |sum| self.binary("Add", sum, product)));
        }
        let mut port = sum.expect("there are taps");
        if let Some(bias) = bias {
            let bias = self.vector(bias, &[width])?;
            port = self.binary("Add", port, bias);
        }
        self.set_rows(y, port);
        Ok(())
    }
}
