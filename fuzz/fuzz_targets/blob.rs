//! Reads any bytes as a blob of the array's compiler.
#![no_main]

use girih_npu::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::blob(bytes));
