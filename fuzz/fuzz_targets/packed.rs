//! Loads a model whose file of packed weights is any bytes, and runs a step.
#![no_main]

use girih_cpu::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::packed(bytes));
