//! The backend on the processor of this machine, if OpenVINO is installed.

mod blobs;
mod conformance;
mod formats;
mod hidden;
mod opened;
mod refusals;
mod times;
