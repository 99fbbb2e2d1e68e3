//! Parses any bytes as the hub's list of a repository's files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| girih_hub::fuzz(bytes));
