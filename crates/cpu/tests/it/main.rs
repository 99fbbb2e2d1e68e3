//! The backend as its users see it: compared with the interpreter, and with itself under other
//! numbers of threads and other steps.

mod adapters;
mod allocation;
mod attend_kernels;
mod attend_paths;
mod bands;
mod broken;
mod clocks;
mod conformance;
mod encoder;
mod experts;
mod fixture;
mod guard_pages;
mod guarded;
mod inner_loops;
mod integers;
mod kernels;
mod linear_rows;
mod opened;
mod outputs;
mod packed;
mod packed_store;
mod path;
mod paths;
mod product_types;
mod recurrences;
mod row_kernels;
mod row_tables;
mod row_timing;
mod rows;
mod short_conv;
mod speed;
mod state;
mod tasks;
mod two_layers;
