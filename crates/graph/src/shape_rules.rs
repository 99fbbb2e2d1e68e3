//! The parts of which the shape rules of ops are made.

use crate::value::Value;

impl Value {
    /// The number of its extents.
    pub(crate) fn rank(&self) -> usize {
        self.shape.extents().len()
    }

    /// The innermost extent.
    pub(crate) fn columns(&self) -> usize {
        self.shape.columns()
    }

    /// The extents within the outermost one.
    pub(crate) fn inner(&self) -> &[usize] {
        &self.shape.extents()[1..]
    }

    /// Whether it has one dimension of this extent.
    pub(crate) fn is_vector(&self, len: usize) -> bool {
        self.shape.extents() == [len]
    }

    /// Whether it has the shape of `other`.
    pub(crate) fn is_like(&self, other: &Value) -> bool {
        self.shape == other.shape && self.outermost == other.outermost
    }

    /// Whether it has as many rows as `other`, which count the same.
    pub(crate) fn has_rows_of(&self, other: &Value) -> bool {
        self.outermost == other.outermost && self.shape.extents()[0] == other.shape.extents()[0]
    }
}
