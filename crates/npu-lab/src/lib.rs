//! Watches the array: compares the simulator with published measurements,
//! searches for the fastest mapping, and reports where a step's time goes. It
//! adds nothing to the backend and computes no time of its own.
#![forbid(unsafe_code)]

pub mod published;
pub mod report;
pub mod sweep;
