//! The functions that C calls. The comment of each is its contract, which the header repeats; pointers are checked for
//! null, and handles are looked up, never followed.

pub mod engine;
pub mod girih;
mod pointers;
pub mod sparse;
pub mod topology;
