//! Parses any text as an architecture file and opens a valid model with it.
#![no_main]

use girih_model::arch::schema;
use girih_model::fuzz;
use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/config.json");
const WEIGHTS: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/model.safetensors");

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(arch) = schema::parse(text) else { return };
    fuzz::safetensors_model(WEIGHTS, CONFIG, vec![arch]);
});
