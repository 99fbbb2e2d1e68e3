//! Opens any bytes as a GGUF model: header, vocabulary, architecture, facts, graph.
#![no_main]

use girih_model::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::gguf_model(bytes));
