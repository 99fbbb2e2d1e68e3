//! Turning heads before they are kept in four bits, so that no large number takes the levels of those beside it.

use girih_graph::{Op, Span, ValueId};
use girih_tensor::DType;

use super::Assembly;

impl Assembly<'_> {
    /// Heads that are kept or that meet kept ones, turned by a Hadamard matrix if state is kept in four bits. `sizes` are
    /// those of all parts of a head that are read alone; a block lies in one of them. Scores of turned queries and keys
    /// are those of the others, and a sum of turned values becomes one of the others by turning it again.
    ///
    /// In eight bits the error of a score is a sixteenth of that, and turning gains little (docs/kernels.md).
    pub(super) fn spread(&mut self, name: &str, x: ValueId, span: Span, sizes: &[usize]) -> ValueId {
        let shared = sizes.iter().map(|size| size.trailing_zeros()).min().unwrap_or(0);
        if self.state != DType::Q4_0 || span.is_of_step() || shared == 0 {
            return x;
        }
        self.graph.same(&format!("{name}.spread"), Op::Hadamard { size: 1 << shared }, &[x])
    }
}
