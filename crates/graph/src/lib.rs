//! The waist: graphs of static shapes, their ops, checks and text form, the
//! interpreter that defines each op, and the interface of backends. It contains
//! no models and no devices.
//!
//! A [`Graph`] is built once for the largest step that it must run (its
//! [`Key`]). A [`Backend`] compiles it whole; the [`interpret`] module defines
//! the result of each [`Op`], and every backend is compared with it.
//!
//! ```
//! use girih_graph::backend::{Input, Range32, Unwatched};
//! use girih_graph::interpret::Interpreter;
//! use girih_graph::{Builder, Error, Graph, Key, Op, OutputKind, Outputs, Sequence, Step};
//! use girih_graph::{WeightSource, faults, load};
//! use girih_tensor::{DType, Shape};
//!
//! /// A source of weights that are all ones.
//! struct Ones;
//! impl WeightSource for Ones {
//!     fn read(&self, _name: &str, _offset: u64, into: &mut [u8]) -> Result<(), Error> {
//!         into.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&1f32.to_le_bytes()));
//!         Ok(())
//!     }
//! }
//!
//! /// Three sums of the two values of a sequence's last row.
//! fn build(key: Key) -> Graph {
//!     let mut graph = Builder::new(key);
//!     let x = graph.input("x", &[2], DType::F32);
//!     let last = graph.gather("last", x);
//!     let weight = graph.weight("weight", Shape::matrix(3, 2), DType::F32);
//!     let sums = graph.shaped("sums", Op::Linear, &[last, weight], &[3]);
//!     graph.finish(sums)
//! }
//!
//! let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Hidden };
//! let graph = build(key);
//! assert!(faults(&graph).is_empty());
//! let text = "\
//! graph rows 4 sequences 1 context 64 output_rows 1 -> hidden
//! input x: [rows 4, 2] f32
//! last: [output_rows 1, 2] = gather x
//! weight weight: [3, 2] f32
//! output sums: [output_rows 1, 3] = linear last, weight
//! ";
//! assert_eq!(graph.to_string(), text);
//! assert_eq!(text.parse::<Graph>()?, graph);
//!
//! let mut runner = load(Interpreter, &Ones, key, &[], |key| Ok(build(key)))?;
//! let rows = Range32 { start: 0, end: 2 };
//! let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::Last, spans: &[] };
//! runner.step(Step {
//!     inputs: &[Input::Rows(&[1.0, 2.0, 3.0, 4.0])],
//!     sequences: &[sequence],
//!     watch: &mut Unwatched,
//! })?;
//! assert_eq!(runner.output().rows(0..1)?, [7.0, 7.0, 7.0]);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod backend;
mod check;
mod constant;
pub mod description;
mod graph;
pub mod host_experts;
mod input;
pub mod interpret;
mod matmuls;
mod memory;
mod memory_plan;
mod numerics;
mod ops;
mod output;
mod plan;
mod range_fault;
pub mod routed_experts;
mod runner;
mod selection;
mod sequence;
mod shape_rules;
mod sink_gather;
pub mod split;
pub mod staged;
pub mod stages;
pub mod state;
mod state_kind;
pub mod store;
#[doc(hidden)]
pub mod testing;
mod text;
mod value;
mod work;

pub use backend::{BLOCK_POSITIONS, Backend, Outputs, Sequence, Step, Watch, WeightSource, WeightTouch};
pub use check::{GraphFault, faults};
pub use constant::{
    Act, ExpertGroups, GateLimit, GateRule, HeadSharing, Pairing, Pooling, RouterScore, Span, Weighed, Xielu,
};
pub use girih_tensor::{Error, ErrorKind, Result};
pub use graph::{Builder, Graph, Key, Node, OutputKind, StateGroup};
pub use input::{InputKind, InputSpec};
pub use matmuls::{head_matmul, multiplied_weights};
pub use memory_plan::{DevicePool, MemoryPlan, PoolBytes};
pub use numerics::{Numerics, Rounding};
pub use ops::rope::rope_angle;
pub use ops::route::Router;
pub use ops::temper::Temperature;
pub use ops::{AppliedOp, Op, OpName, OpSpec, OperandKind, RowUse};
pub use output::{HostRows, Output, Picks};
pub use plan::{Placement, ScratchPlan};
pub use range_fault::{RangeFault, out_of_range};
pub use runner::{Phases, Runner, load, load_fixed};
pub use selection::{SELECTION_POSITIONS, is_selected, select};
pub use sink_gather::{SunkGather, sink_gather};
pub use state_kind::{STATE_TYPES, StateKind};
pub use value::{Extent, GroupId, Role, Value, ValueId};
pub use work::{MAX_OPERANDS, NodeWork, ReadPositions, Reads, WorkStep};
