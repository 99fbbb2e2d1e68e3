//! The images of the repository, and the location of those that are too large for it.

use std::path::{Path, PathBuf};

use girih_image::{DecodeLimits, Picture};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The bytes of a file of `tests/images`.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What Pillow and transformers make of the images, by `scripts/image_golden.py`.
pub fn golden() -> Value {
    serde_json::from_slice(&bytes("golden.json")).expect("the golden file is JSON")
}

/// A picture of `tests/images`.
pub fn picture(name: &str) -> Picture {
    Picture::decode(&bytes(name), &DecodeLimits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder in `GIRIH_TEST_DATA`. Without the variable, prints that the test is skipped.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}
