//! Observes the simulated array: compares the simulator with published
//! measurements, searches for the fastest mapping, and reports where a step's
//! time goes. All times come from the simulator of `girih-npu`.
#![forbid(unsafe_code)]

mod energy;
pub mod published;
pub mod report;
pub mod sweep;
