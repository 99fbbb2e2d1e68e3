//! The backend on the GPU of this machine, or on software that computes as one.

mod conformance;
mod formats;
mod opened;
mod range_faults;
