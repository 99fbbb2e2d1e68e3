//! Parses any text as a reply in one of the styles of tool calls, in pieces.
#![no_main]

use girih_words::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::reply(bytes));
