//! The model crate from outside.

mod bad_files;
mod data;
mod files;
mod mutations;
mod raw;
mod words;
