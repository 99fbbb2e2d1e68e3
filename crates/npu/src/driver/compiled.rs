//! A graph with its array programs.

use std::sync::Arc;

use crate::form::groups::Groups;
use crate::form::schedule::Schedule;

/// A compiled graph.
#[derive(Clone, Debug)]
pub struct CompiledGraph {
    /// Its programs and steps.
    pub groups: Groups,
    /// The schedule of each program.
    pub schedules: Vec<Arc<Schedule>>,
    /// The number of programs that were not in the cache and had to be
    /// compiled.
    pub fresh: usize,
}
