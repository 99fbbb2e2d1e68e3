//! Parses any text as a mapping of a model to the array, and compiles a layer with it.
#![no_main]

use girih_npu::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::mapping(text));
