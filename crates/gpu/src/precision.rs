//! The precision of activations in products, and what follows from it for a graph.

use girih_graph::{Graph, Numerics, Rounding, ValueId, head_matmul, multiplied_weights};
use girih_tensor::DType;

use crate::layout::{BandLayout, ScaleKind};

/// The precision to which activations are rounded before they are multiplied by quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActPrecision {
    /// Single precision: not rounded.
    F32,
    /// Signed bytes with one scale for each 32 values of a row.
    #[default]
    Int8,
}

/// The bytes of a rounded group of columns in two buffers: its codes, up to two bytes each; and its scale with the sums of the codes
/// of both halves.
pub(crate) const ROUNDED_BYTES: [u64; 2] = [64, 16];

/// The rounding to bytes. Their scales are those of Q8_0, without its rounding of the scale.
const INT8: Rounding = Rounding { name: "int8", format: DType::Q8_0, multiplied: "int8" };

impl ActPrecision {
    /// All precisions, the finest first.
    pub const ALL: [ActPrecision; 2] = [ActPrecision::F32, ActPrecision::Int8];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ActPrecision::F32 => "f32",
            ActPrecision::Int8 => "int8",
        }
    }

    /// Whether activations are rounded before products with weights of this layout: those of integers.
    pub(crate) fn rounds(self, layout: BandLayout) -> bool {
        self == ActPrecision::Int8 && layout.scales != ScaleKind::None
    }

    /// How the matmuls of a graph round.
    pub(crate) fn numerics(self, graph: &Graph) -> Numerics {
        let rounding = |weight: ValueId| {
            let layout = BandLayout::of(graph.value(weight).dtype);
            if layout.is_some_and(|layout| self.rounds(layout)) { INT8 } else { Rounding::NONE }
        };
        let coarsest_first = [INT8, Rounding::NONE].into_iter();
        let used =
            coarsest_first.filter(|kind| multiplied_weights(graph).any(|weight| rounding(weight) == *kind));
        let head = head_matmul(graph).map_or(Rounding::NONE, |node| rounding(node.inputs[1]));
        Numerics { activations: used.collect(), head, ..Numerics::single() }
    }
}
