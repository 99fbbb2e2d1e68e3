//! Integration tests of the file crate.
#![forbid(unsafe_code)]

mod bad_files;
mod files;
mod folder;
mod iebin;
mod iebin_overlay;
mod mutations;
mod outside;
mod private;
mod q4nx;
mod raw;
mod sparse_blocks;
