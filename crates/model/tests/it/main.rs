//! The model crate from outside.

mod bad_files;
mod files;
mod hub;
mod light;
mod mutations;
mod raw;
