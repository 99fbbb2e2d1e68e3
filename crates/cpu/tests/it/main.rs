//! The backend as its users meet it: against the interpreter, against itself
//! under other threads and other steps, and against its own promises.

mod agree;
mod allocation;
mod attend_kernels;
mod attention;
mod fixture;
mod invariance;
mod kernels;
mod packed;
mod packed_store;
mod row_timing;
mod rows;
mod speed;
mod state;
