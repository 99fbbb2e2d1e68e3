//! Stores rows in the state of their sequences. Its definition is
//! [`PositionMajor::write`](crate::state::PositionMajor::write).

use girih_tensor::Shape;

use crate::value::Value;
use crate::work::{NodeWork, WorkStep};

pub(super) fn fits(x: &Value, state: &Value) -> bool {
    x.rank() == 3 && state.inner() == x.inner()
}

pub(super) fn work(_x: Shape, _step: WorkStep<'_>) -> NodeWork {
    NodeWork::reading_all(1)
}
