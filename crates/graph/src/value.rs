//! Values: what nodes read and write.

use girih_tensor::DType;
use girih_tensor::Shape;

/// Index of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// Index of a [`StateGroup`](crate::StateGroup).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// An input, a weight, state, or the result of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Unique in its graph, and the same in the graphs of all keys:
    /// `layers.3.attend.q`.
    pub name: String,
    /// The extents at the graph's key.
    pub shape: Shape,
    /// The element type or block format.
    pub dtype: DType,
    /// What writes the value, and how long it lives.
    pub role: Role,
    /// What the outermost extent counts.
    pub outermost: Extent,
}

impl Value {
    /// The number of values of one row; of state, those of one position, or the whole carried value.
    pub fn row_len(&self) -> usize {
        match self.outermost {
            Extent::Fixed => self.shape.elements(),
            Extent::Rows | Extent::OutputRows | Extent::Sequences | Extent::Context => self.shape.stride(),
        }
    }
}

/// What writes a value, and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Set by the caller of each step.
    Input,
    /// Constant over the life of the program.
    Weight,
    /// Kept between steps, as the kind of its group says.
    State(GroupId),
    /// Written and read within one step.
    Scratch,
    /// The result of a step.
    Output,
}

/// What an outermost extent counts; backends without fixed shapes shrink all
/// but `Fixed` to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Nothing that varies between steps.
    Fixed,
    /// Rows of the step.
    Rows,
    /// Output rows of the step.
    OutputRows,
    /// Sequences of the step.
    Sequences,
    /// Positions of a sequence.
    Context,
}
