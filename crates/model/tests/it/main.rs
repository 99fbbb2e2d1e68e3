//! The model crate from outside.

mod bad_files;
mod files;
mod mutations;
mod raw;
