//! The types in which matrices in block formats are multiplied, and how they round.

use girih_graph::{Graph, Numerics, Rounding, ValueId, head_matmul, multiplied_weights};
use girih_tensor::DType;

use crate::planes::PlaneFormat;

/// The type of the numbers that a matrix in a block format is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductType {
    /// Activations as they are.
    F32,
    /// Activations as integers of 8 bits with a scale for each 32, where the library has such products.
    Int8,
}

/// Rounding to integers of 8 bits with a scale for each 32: that of Q8_0.
const INT8: Rounding = Rounding { name: "int8", format: DType::Q8_0, multiplied: "int8" };

impl ProductType {
    /// All types.
    pub const ALL: [ProductType; 2] = [ProductType::F32, ProductType::Int8];

    /// The name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            ProductType::F32 => "f32",
            ProductType::Int8 => "int8",
        }
    }

    /// OpenVINO's number of activations that share a scale; 0 for activations as they are.
    pub fn group(self) -> &'static str {
        match self {
            ProductType::F32 => "0",
            ProductType::Int8 => "32",
        }
    }

    /// How a program of a graph rounds. Which products the library has is its own choice, so each matrix in a block format
    /// counts.
    pub fn numerics(self, graph: &Graph) -> Numerics {
        let rounds = |weight: ValueId| {
            self == ProductType::Int8 && PlaneFormat::of(graph.value(weight).dtype).is_some()
        };
        let weights = multiplied_weights(graph);
        let integers = weights.clone().any(rounds).then_some(INT8);
        let floats = (!weights.clone().all(rounds) || integers.is_none()).then_some(Rounding::NONE);
        let head = head_matmul(graph).is_some_and(|node| node.inputs.iter().any(|id| rounds(*id)));
        Numerics {
            stores: DType::F32,
            activations: integers.into_iter().chain(floats).collect(),
            head: if head { INT8 } else { Rounding::NONE },
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Builder, Key, Op, OutputKind};
    use girih_tensor::Shape;

    use super::*;

    fn graph(dtype: DType) -> Graph {
        let key = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Logits };
        let mut builder = Builder::new(key);
        let x = builder.input("x", &[64], DType::F32);
        let rows = builder.gather("rows", x);
        let weight = builder.weight("weight", Shape::matrix(3, 64), dtype);
        let y = builder.shaped("y", Op::Linear, &[rows, weight], &[3]);
        builder.finish(y)
    }

    #[test]
    fn only_integer_products_of_block_formats_round_activations() {
        for (products, dtype, name) in [
            (ProductType::F32, DType::Q4_0, "f32"),
            (ProductType::Int8, DType::BF16, "f32"),
            (ProductType::Int8, DType::Q4_0, "int8"),
        ] {
            let numerics = products.numerics(&graph(dtype));
            assert_eq!((numerics.name().as_str(), numerics.head.name), (name, name), "{products:?} {dtype}");
        }
    }
}
