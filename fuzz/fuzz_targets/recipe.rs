//! Parses any text as a recipe of `quantize`.
#![no_main]

use girih_convert::Recipe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Recipe::parse(text);
});
