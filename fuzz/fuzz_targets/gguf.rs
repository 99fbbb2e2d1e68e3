//! Parses any bytes as a GGUF file: an error, or every tensor lies within the bytes.
#![no_main]

use girih_file::FileLimits;
use girih_file::gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(contents) = gguf::parse(&bytes, &FileLimits::DEFAULT) else { return };
    for info in contents.tensors.values() {
        assert!(info.offset + info.bytes <= bytes.len() as u64);
    }
});
