//! Parses any bytes as the `tokenizer_config.json` beside a valid `tokenizer.json`.
#![no_main]

use girih_words::fuzz;
use libfuzzer_sys::fuzz_target;

const TOKENIZER: &[u8] = include_bytes!("../../tests/fixtures/llama32_tied/tokenizer.json");

fuzz_target!(|bytes: &[u8]| fuzz::tokenizer_config(TOKENIZER, bytes));
