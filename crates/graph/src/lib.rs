//! The waist: one static-shape computation, described, checked, printed, and
//! run slowly. It knows no models and no devices.
//!
//! A [`Graph`] is built once for the largest step it must take (its [`Key`]).
//! A [`Backend`] compiles it whole; the [`interpret`] module is the definition
//! of what each [`Op`] computes, and every backend is compared with it.
#![forbid(unsafe_code)]

pub mod backend;
mod check;
mod error;
mod graph;
pub mod interpret;
mod op;
mod plan;
mod runner;
mod text;

pub use backend::{Backend, Lane, Step, Want, Watch, WeightSource};
pub use check::{Fault, faults};
pub use error::Error;
pub use graph::{
    Builder, Extent, Graph, Group, GroupId, InputKind, Key, Node, OutputKind, Role, Value, ValueId, Variant,
};
pub use op::{Act, Op, Pairing, Span};
pub use plan::{Placement, ScratchPlan};
pub use runner::{Runner, load};

/// Positions in one block of state: the unit in which sequences own memory.
///
/// A multiple of it is the stretch over which attention forms partial sums, so
/// that blocks and partial sums never straddle each other.
pub const BLOCK_POSITIONS: usize = 64;
