//! Decodes any bytes as an image, and makes rows of patches of it.
#![no_main]

use girih_image::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::image(bytes));
