//! The model crate from outside.
#![forbid(unsafe_code)]

mod bad_files;
mod bad_models;
mod convert;
mod data;
mod files;
mod hub;
mod light;
mod mutations;
mod raw;
mod words;
