//! Parses any bytes as a safetensors file: an error, or every tensor lies within the bytes.
#![no_main]

use girih_file::FileLimits;
use girih_file::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(contents) = safetensors::parse(&bytes, &FileLimits::DEFAULT) else { return };
    let data: u64 = contents.tensors.values().map(|info| info.bytes).sum();
    assert!(data <= bytes.len() as u64);
    for info in contents.tensors.values() {
        assert!(info.offset + info.bytes <= bytes.len() as u64);
    }
});
