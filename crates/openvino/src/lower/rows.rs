//! Ops that choose rows: embeddings, given rows, output rows, pooled rows, other shapes.

use girih_graph::{Pooling, ValueId};
use girih_tensor::Result;

use super::lowering::{GraphLowering, ParameterSource};
use crate::ir::{Plane, Port, Precision, layer};
use crate::step_shape::StepAxis;
use crate::weights::{BlockPlanes, StoredWeight};

impl GraphLowering<'_> {
    /// Rows of a table; those in a block format stay compressed.
    pub(super) fn embed(&mut self, ids: ValueId, table: ValueId, y: ValueId) -> Result<()> {
        let ids = self.rows(ids)?;
        let port = match self.stored(table)? {
            StoredWeight::Numbers(plane) => {
                let rows = self.taken(&plane, ids);
                self.float(rows, plane.precision)
            }
            StoredWeight::Blocks(planes) => self.decoded_rows(&planes, ids),
            StoredWeight::OnHost => return Err(self.misplaced(table)),
        };
        self.set_rows(y, port);
        Ok(())
    }

    /// Rows of a plane.
    fn taken(&mut self, plane: &Plane, ids: Port) -> Port {
        let port = self.model.plane(plane);
        self.taken_rows(port, plane.precision, ids)
    }

    fn taken_rows(&mut self, table: Port, precision: Precision, ids: Port) -> Port {
        let axis = self.model.integer(0);
        self.model.layer(layer("Gather", 8), "batch_dims=\"0\"", &[table, ids, axis], precision)
    }

    /// Rows of `(codes − zeros) · scales`, as OpenVINO knows compressed tables, and then their offsets.
    fn decoded_rows(&mut self, planes: &BlockPlanes, ids: Port) -> Port {
        let [rows, groups, group] = [0, 1, 2].map(|axis| planes.codes.shape[axis] as i64);
        // NPUW multiplies a table in the precision that the model states, others in f32.
        let precision = if self.shape.is_fixed() { Precision::F32 } else { planes.scales.precision };
        let products = self.decoded(planes, None, &[rows, groups * group], precision);
        let port = self.taken_rows(products, Precision::F32, ids);
        let Some(offsets) = &planes.offsets else { return port };
        let products = self.shaped(port, &[0, 0, groups, group]);
        let offsets = self.taken(offsets, ids);
        let sums = self.binary("Add", products, offsets);
        self.shaped(sums, &[0, 0, groups * group])
    }

    pub(super) fn splice(&mut self, x: ValueId, given: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let width = self.inner(given)[0];
        let shape = |width| [StepAxis::Lanes, StepAxis::Rows, StepAxis::Of(width)];
        let rows = self.parameter(ParameterSource::Given(given), Precision::F32, &shape(width));
        let is_given = self.parameter(ParameterSource::IsGiven(given), Precision::I32, &shape(1));
        let condition = self.model.layer(
            layer("Convert", 1),
            "destination_type=\"boolean\"",
            &[is_given],
            Precision::Boolean,
        );
        let port = self.chosen_where(condition, rows, x);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn reshape(&mut self, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let shape: Vec<i64> =
            [0, 0].into_iter().chain(self.inner(y).into_iter().map(|extent| extent as i64)).collect();
        let port = self.shaped(x, &shape);
        self.set_rows(y, port);
        Ok(())
    }

    /// All rows of all sequences become one list, from which the output rows are taken.
    pub(super) fn gather(&mut self, x: ValueId, y: ValueId) -> Result<()> {
        let inner = self.inner(x);
        let x = self.rows(x)?;
        let shape: Vec<i64> =
            [1, -1].into_iter().chain(inner.into_iter().map(|extent| extent as i64)).collect();
        let list = self.shaped(x, &shape);
        let taken = self.parameter(ParameterSource::Taken, Precision::I32, &[StepAxis::Outputs]);
        let axis = self.model.integer(1);
        let port = self.layer(layer("Gather", 8), "batch_dims=\"0\"", &[list, taken, axis]);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn pool(&mut self, how: Pooling, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let axis = self.model.integers(&[1]);
        let port = match how {
            Pooling::Mean => self.layer(layer("ReduceMean", 1), "keep_dims=\"true\"", &[x, axis]),
            Pooling::First | Pooling::Last => {
                let index = self.model.integers(&[if how == Pooling::First { 0 } else { -1 }]);
                let axis = self.model.integer(1);
                self.layer(layer("Gather", 8), "batch_dims=\"0\"", &[x, index, axis])
            }
        };
        self.set_rows(y, port);
        Ok(())
    }
}
