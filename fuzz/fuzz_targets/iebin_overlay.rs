//! Parses any bytes as an overlay of IEBIN: an error, or every tensor can be read.
#![no_main]

use girih_file::fuzz::iebin_overlay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // An error is as good as a container.
    let _ = iebin_overlay(bytes);
});
