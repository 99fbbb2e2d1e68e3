//! Compiles any bytes as a schema, an expression or a grammar, and follows its masks.
#![no_main]

use std::sync::LazyLock;

use girih_grammar::{GrammarCompiler, fuzz};
use libfuzzer_sys::fuzz_target;

static COMPILER: LazyLock<GrammarCompiler> =
    LazyLock::new(|| fuzz::compiler(include_bytes!("../../tests/fixtures/llama32_tied/tokenizer.json")));

fuzz_target!(|bytes: &[u8]| fuzz::grammar(&COMPILER, bytes));
