//! The conformance suite: cases of every op, drawn by seed, with a bound derived from the op's definition.
//!
//! A test of a backend calls [`check`] with a [`TestedBackend`]. The suite runs each case on the interpreter and on
//! the subject, compares the results within the bound, and then runs it again in each way in which the subject may
//! be opened, with its rows divided into other steps: every byte must stay. State is filled with NaN before. An op
//! without cases does not compile ([`draw`]). Whole layers follow, without bounds, as a backend may compute several ops
//! at once ([`draw_block`]). [`undetected`] shows that the bounds are tight: it breaks every op in
//! many ways, and some case must notice each.
//!
//! It is part of the library, not a feature of it: with a feature, the tests and the program would not share what
//! is built.

mod block;
mod broken;
mod case;
mod delta;
mod draft;
mod elements;
mod experts;
mod formats;
mod matmuls;
mod norms;
mod roundoff;
mod rows;
mod scans;
mod sequences;
mod suite;
mod table;

pub use block::{draw_block, draw_decoder};
pub use broken::undetected;
pub use case::{Case, CaseInput, CaseSequence, Cut, StepCuts, WeightTable};
pub use draft::stored_values;
pub use experts::compare_experts;
pub use formats::{FormatNumbers, ShownBy, shown_numbers};
pub use roundoff::{GeluForm, Roundoff, U};
pub use suite::{EqualBytes, OpReport, Open, Report, TestedBackend, check, check_cases, error_shares, judge};
pub use table::draw;
