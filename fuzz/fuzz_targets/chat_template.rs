//! Parses any bytes as the frames of a worker, a template's source and a user's strings.
#![no_main]

use girih_words::template;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| template::fuzz(bytes));
