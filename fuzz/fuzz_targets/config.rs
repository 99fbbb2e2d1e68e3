//! Reads any bytes as `config.json` and as `generation_config.json` of a model with valid
//! weights.
#![no_main]

use girih_model::fuzz;
use libfuzzer_sys::fuzz_target;

const WEIGHTS: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/model.safetensors");

fuzz_target!(|bytes: &[u8]| {
    fuzz::safetensors_model(WEIGHTS, bytes, Vec::new());
    fuzz::generation(bytes);
});
