//! Tests of the array: forms and passes, the simulator, the driver and blobs, in one program.

mod blob;
mod compile;
mod conformance;
mod emit;
mod emit_mutants;
mod emit_public;
mod forms;
mod host_ops;
mod kernels_in_c;
mod llama;
mod llama_1b;
mod locks;
mod mapping;
mod mutants;
mod opened;
mod orders;
mod q4nx;
mod random;
mod registers;
mod rules;
mod runtime;
mod sequences;
mod sweeps;
mod value_speed;
mod values;
mod windows;
