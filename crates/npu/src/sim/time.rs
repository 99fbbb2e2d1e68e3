//! Time, and the order of events.

/// A time, in cycles of the array.
pub type Cycle = u64;

/// In which order things happen that may happen in any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOrder {
    /// Each takes the time that the target says.
    Earliest,
    /// Each takes a time drawn from this seed: any order that the locks allow.
    /// Such a run says nothing about time.
    Seeded(u64),
}
