//! Parses any text as a target of the array's compiler, and compiles a layer for it.
#![no_main]

use girih_npu::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::target(text));
