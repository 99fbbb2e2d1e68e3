//! Opens any bytes as a GGUF model: header, vocabulary, architecture, facts, graph.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    girih_words::fuzz::gguf_tokenizer(bytes);
    girih_model::fuzz::gguf_model(bytes);
});
