//! How a backend rounds, from which error bounds are derived.

use girih_tensor::DType;

/// How a backend rounds while it runs a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// The type in which results of ops are stored.
    pub stores: DType,
    /// The distinct roundings applied to activations before matmuls, in addition to that of
    /// `stores`, coarsest first.
    pub activations: Vec<Rounding>,
    /// The rounding of activations before the matmul that yields the output.
    pub head: Rounding,
}

/// A rounding of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// The name, such as `int8`.
    pub name: &'static str,
    /// A format whose rounding error bounds this one's.
    pub format: DType,
    /// The operand type of the multiply instruction, such as `int8`.
    pub multiplied: &'static str,
}

impl Rounding {
    /// No rounding beyond the stored type.
    pub const NONE: Rounding = Rounding { name: "f32", format: DType::F32, multiplied: "f32" };
}

impl Numerics {
    /// Everything in single precision.
    pub fn single() -> Numerics {
        Numerics { stores: DType::F32, activations: vec![Rounding::NONE], head: Rounding::NONE }
    }

    /// How two backends round together, if `self` runs the first nodes of a graph and `last` the others.
    #[must_use]
    pub fn followed_by(self, last: Numerics) -> Numerics {
        let stores = if bits(last.stores) < bits(self.stores) { last.stores } else { self.stores };
        let mut activations = self.activations;
        activations.extend(last.activations);
        activations.sort_by(|a, b| bits(a.format).total_cmp(&bits(b.format)));
        activations.dedup();
        Numerics { stores, activations, head: last.head }
    }

    /// The precision of activations in matmuls: a name, or several joined by `+`.
    pub fn name(&self) -> String {
        match self.activations.as_slice() {
            [] => self.stores.name().to_owned(),
            all => all.iter().map(|rounding| rounding.name).collect::<Vec<_>>().join("+"),
        }
    }
}

/// The bits of a number in a format: fewer are coarser.
fn bits(format: DType) -> f64 {
    let (rows, columns) = format.tile();
    8.0 * format.block_bytes() as f64 / (rows * columns) as f64
}
