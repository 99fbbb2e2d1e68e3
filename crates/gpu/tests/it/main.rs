//! The backend on the GPU of this machine, or on software that computes as one.

mod carried;
mod conformance;
mod emulated;
mod fixtures;
mod formats;
mod fusion;
mod integers;
mod left_experts;
mod opened;
mod picks;
mod range_faults;
mod wide_norms;
