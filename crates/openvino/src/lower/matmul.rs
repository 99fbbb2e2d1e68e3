//! Matmuls with weights, and weights as the model reads them.

use girih_graph::ValueId;
use girih_tensor::{Error, Result};

use super::lowering::GraphLowering;
use crate::ir::{Plane, Port, Precision, layer};
use crate::planes::ZeroKind;
use crate::weights::{BlockPlanes, StoredWeight};

impl GraphLowering<'_> {
    pub(super) fn linear(
        &mut self,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        y: ValueId,
    ) -> Result<()> {
        let outputs = self.graph.value(weight).shape.rows();
        let x = self.rows(x)?;
        let weight = self.matrix(weight)?;
        let mut port =
            self.layer(layer("MatMul", 1), "transpose_a=\"false\" transpose_b=\"true\"", &[x, weight]);
        if let Some(bias) = bias {
            let bias = self.vector(bias, &[outputs])?;
            port = self.binary("Add", port, bias);
        }
        self.set_rows(y, port);
        Ok(())
    }

    /// A matrix as floats.
    pub(super) fn matrix(&mut self, id: ValueId) -> Result<Port> {
        match self.stored(id)? {
            StoredWeight::Numbers(plane) => {
                let port = self.model.plane(&plane);
                Ok(self.float(port, plane.precision))
            }
            StoredWeight::Blocks(planes) => {
                let shape = self.graph.value(id).shape;
                let shape = [shape.rows() as i64, shape.columns() as i64];
                Ok(self.decoded(&planes, planes.zeros.as_ref(), &shape, planes.scales.precision))
            }
            StoredWeight::OnHost => Err(self.misplaced(id)),
        }
    }

    /// Matrices of heads or of experts, as floats.
    pub(super) fn matrices(&mut self, id: ValueId) -> Result<Port> {
        let StoredWeight::Blocks(planes) = self.stored(id)? else { return self.matrix(id) };
        let extents = self.graph.value(id).shape.extents();
        let planes = planes.apart(extents[0]);
        let shape: Vec<i64> = extents.iter().map(|extent| *extent as i64).collect();
        Ok(self.decoded(&planes, planes.zeros.as_ref(), &shape, planes.scales.precision))
    }

    /// `(codes − zeros) · scales`, as OpenVINO knows compressed weights if the precision is that of the scales.
    pub(super) fn decoded(
        &mut self,
        planes: &BlockPlanes,
        zeros: Option<&Plane>,
        shape: &[i64],
        precision: Precision,
    ) -> Port {
        let codes = self.model.plane(&planes.codes);
        let mut port = self.converted(codes, precision);
        let zeros = match (zeros, planes.format.zeros) {
            (Some(zeros), _) => Some(self.model.plane(zeros)),
            (None, ZeroKind::Eight) => {
                let eight = self.model.four_bits(8);
                Some(self.converted(eight, precision))
            }
            (None, ZeroKind::None | ZeroKind::Each) => None,
        };
        let binary = "auto_broadcast=\"numpy\"";
        if let Some(zeros) = zeros {
            port = self.model.layer(layer("Subtract", 1), binary, &[port, zeros], precision);
        }
        let mut scales = self.model.plane(&planes.scales);
        if planes.scales.precision != precision {
            scales = self.converted(scales, precision);
        }
        port = self.model.layer(layer("Multiply", 1), binary, &[port, scales], precision);
        let shape = self.model.integers(shape);
        port = self.model.layer(layer("Reshape", 1), "special_zero=\"false\"", &[port, shape], precision);
        self.float(port, precision)
    }

    /// A vector, of which each row of the last extents has its numbers.
    pub(super) fn vector(&mut self, id: ValueId, inner: &[usize]) -> Result<Port> {
        match self.stored(id)? {
            StoredWeight::Numbers(plane) if plane.precision == Precision::F32 => {
                let elements = self.graph.value(id).shape.elements();
                let columns = inner.last().copied().unwrap_or(1);
                let shape = if elements == columns { vec![columns] } else { inner.to_vec() };
                Ok(self.model.plane(&Plane { shape, ..plane }))
            }
            StoredWeight::Numbers(_) | StoredWeight::Blocks(_) | StoredWeight::OnHost => {
                Err(self.misplaced(id))
            }
        }
    }

    /// Numbers as 32-bit floats.
    pub(super) fn float(&mut self, port: Port, precision: Precision) -> Port {
        match precision {
            Precision::F32 => port,
            _ => self.converted(port, Precision::F32),
        }
    }

    fn converted(&mut self, port: Port, to: Precision) -> Port {
        let attributes = format!("destination_type=\"{}\"", to.name());
        self.model.layer(layer("Convert", 1), &attributes, &[port], to)
    }

    pub(super) fn stored(&self, id: ValueId) -> Result<StoredWeight> {
        self.layout.find(&self.graph.value(id).name).cloned().ok_or_else(|| self.misplaced(id))
    }

    pub(super) fn misplaced(&self, id: ValueId) -> Error {
        Error::new(format!("the weight '{}' has no place; this is a bug in girih", self.graph.value(id).name))
    }
}
