//! Parses any bytes as a `model.safetensors.index.json`.
#![no_main]

use girih_file::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::index(bytes));
