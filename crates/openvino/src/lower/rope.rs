//! Rotations by positions, with cosines and sines from the host.

use girih_graph::{Pairing, ValueId};
use girih_tensor::Result;

use super::lowering::{GraphLowering, HostRotation, ParameterSource};
use crate::ir::{Port, Precision, layer};
use crate::step_shape::StepAxis;

impl GraphLowering<'_> {
    pub(super) fn rope(
        &mut self,
        pairing: Pairing,
        factor: Option<f32>,
        x: ValueId,
        [frequencies, positions]: [Option<ValueId>; 2],
        y: ValueId,
    ) -> Result<()> {
        let frequencies = frequencies.expect("a rotation has frequencies");
        let streams = positions.map_or(1, |positions| self.graph.value(positions).shape.columns());
        let rotated = 2 * (self.graph.value(frequencies).shape.elements() / streams.max(1));
        let size = self.graph.value(x).shape.columns();
        let rotation = HostRotation { frequencies, positions, pairing, factor, rotated };
        let [cosines, sines] = self.tables(rotation);
        let heads = self.heads(x)?;
        let port = if rotated == size {
            self.turned(heads, [cosines, sines], rotation)
        } else {
            let [first, rest] = self.split(heads, [rotated, size - rotated]);
            let first = self.turned(first, [cosines, sines], rotation);
            self.layer(layer("Concat", 1), "axis=\"-1\"", &[first, rest])
        };
        self.set_heads(y, port);
        Ok(())
    }

    /// The parameters of a rotation, `[n, 1, r, rotated]`.
    fn tables(&mut self, rotation: HostRotation) -> [Port; 2] {
        let known = self.rotations.iter().position(|known| *known == rotation);
        let index = known.unwrap_or_else(|| {
            self.rotations.push(rotation);
            self.rotations.len() - 1
        });
        let shape = [StepAxis::Lanes, StepAxis::Of(1), StepAxis::Rows, StepAxis::Of(rotation.rotated)];
        [ParameterSource::Cosines(index), ParameterSource::Sines(index)]
            .map(|source| self.parameter(source, Precision::F32, &shape))
    }

    /// `x · cosines + partners(x) · sines`. Halves are written as OpenVINO fuses them: with a split along axis 3 and a
    /// concatenation along axis −1.
    fn turned(&mut self, x: Port, [cosines, sines]: [Port; 2], rotation: HostRotation) -> Port {
        let partners = match rotation.pairing {
            Pairing::Halves => {
                let [a, b] = self.split(x, [rotation.rotated / 2; 2]);
                let minus = self.model.float(-1.0);
                let b = self.binary("Multiply", b, minus);
                self.layer(layer("Concat", 1), "axis=\"-1\"", &[b, a])
            }
            Pairing::Neighbours => {
                let order: Vec<i64> = (0..rotation.rotated as i64).map(|index| index ^ 1).collect();
                let (order, axis) = (self.model.integers(&order), self.model.integer(3));
                self.layer(layer("Gather", 8), "batch_dims=\"0\"", &[x, order, axis])
            }
        };
        let kept = self.binary("Multiply", x, cosines);
        let crossed = self.binary("Multiply", partners, sines);
        self.binary("Add", kept, crossed)
    }

    fn split(&mut self, x: Port, lengths: [usize; 2]) -> [Port; 2] {
        let axis = self.model.integer(3);
        let lengths = self.model.integers(&lengths.map(|length| length as i64));
        let parts =
            self.model.layers(layer("VariadicSplit", 1), "", &[x, axis, lengths], &[Precision::F32; 2]);
        [parts[0], parts[1]]
    }
}
