//! The backend on the processor of this machine, if OpenVINO is installed.

mod conformance;
mod formats;
mod hidden;
mod opened;
mod refusals;
