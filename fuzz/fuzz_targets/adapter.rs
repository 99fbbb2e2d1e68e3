//! Opens any bytes as the settings and as the tensors of an adapter of a valid model.
#![no_main]

use girih_model::fuzz;
use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/config.json");
const WEIGHTS: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/model.safetensors");

fuzz_target!(|bytes: &[u8]| fuzz::adapter(WEIGHTS, CONFIG, bytes));
