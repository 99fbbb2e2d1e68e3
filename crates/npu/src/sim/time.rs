//! Time, and the order of simultaneous events.

/// A time in cycles of the array.
pub type Cycle = u64;

/// How the simulator orders events that have no fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOrder {
    /// Each event takes the time given by the target.
    Earliest,
    /// Each event takes a time drawn from this seed, so events happen in any
    /// order that the locks allow. The times of such a run are meaningless.
    Seeded(u64),
}
