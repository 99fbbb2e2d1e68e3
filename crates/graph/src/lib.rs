//! The waist: one static-shape computation, described, checked, printed, and
//! run slowly. It knows no models and no devices.
//!
//! A [`Graph`] is built once for the largest step it must take (its [`Key`]).
//! A [`Backend`] compiles it whole; the [`interpret`] module is the definition
//! of what each [`Op`] computes, and every backend is compared with it.
//!
//! ```
//! use girih_graph::backend::{Inputs, Range32, Unwatched};
//! use girih_graph::interpret::Interpreter;
//! use girih_graph::{Builder, Error, Graph, InputKind, Key, Sequence, Op, OutputKind, Step, Variant, Outputs};
//! use girih_graph::{WeightSource, faults, load};
//! use girih_tensor::{DType, Shape};
//!
//! /// A source whose every weight is full of ones.
//! struct Ones;
//! impl WeightSource for Ones {
//!     fn read(&self, _name: &str, _offset: u64, into: &mut [u8]) -> Result<(), Error> {
//!         into.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&1f32.to_le_bytes()));
//!         Ok(())
//!     }
//! }
//!
//! /// The last row of a sequence, as three sums of its two values.
//! fn build(key: Key) -> Graph {
//!     let mut graph = Builder::new(key);
//!     let x = graph.input("x", &[2], DType::F32);
//!     let last = graph.gather("last", x);
//!     let weight = graph.weight("weight", Shape::matrix(3, 2), DType::F32);
//!     let sums = graph.shaped("sums", Op::Linear, &[last, weight], &[3]);
//!     graph.finish(sums)
//! }
//!
//! let variant = Variant { input: InputKind::Embeddings, output: OutputKind::Hidden };
//! let most = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, variant };
//! let graph = build(most);
//! assert!(faults(&graph).is_empty());
//! let text = "\
//! graph rows 4 sequences 1 context 64 output_rows 1 embeddings -> hidden
//! input x: [rows 4, 2] f32
//! last: [output_rows 1, 2] = gather x
//! weight weight: [3, 2] f32
//! output sums: [output_rows 1, 3] = linear last, weight
//! ";
//! assert_eq!(graph.to_string(), text);
//! assert_eq!(text.parse::<Graph>()?, graph);
//!
//! let mut runner = load(Interpreter, &Ones, most, &[], |key| Ok(build(key)))?;
//! let rows = Range32 { start: 0, end: 2 };
//! let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::Last, spans: &[] };
//! let mut output = [0.0; 3];
//! runner.step(Step {
//!     inputs: Inputs::Embeddings(&[1.0, 2.0, 3.0, 4.0]),
//!     sequences: &[sequence],
//!     output: &mut output,
//!     watch: &mut Unwatched,
//! })?;
//! assert_eq!(output, [7.0, 7.0, 7.0]);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod backend;
mod check;
mod graph;
pub mod interpret;
mod op;
mod plan;
mod runner;
mod sink_gather;
mod text;

pub use backend::{Backend, Outputs, Sequence, Step, Watch, WeightSource};
pub use check::{Fault, faults};
pub use girih_tensor::{Error, Result};
pub use graph::{
    Builder, Extent, Graph, Group, GroupId, InputKind, Key, Node, OutputKind, Role, Value, ValueId, Variant,
};
pub use op::{Act, Op, Pairing, Span};
pub use plan::{Placement, ScratchPlan};
pub use runner::{Phases, Runner, load};
pub use sink_gather::{SunkGather, sink_gather};

/// Positions in one block of state: the unit in which sequences own memory.
///
/// A multiple of it is the stretch over which attention forms partial sums, so
/// that blocks and partial sums never straddle each other.
pub const BLOCK_POSITIONS: usize = 64;
