//! The entry point of the fuzz target `index`, whose parser is not public, and
//! the mutations of files that tests share.

use std::path::Path;

use girih_tensor::Random;

use crate::limits::FileLimits;
use crate::open::parse_index;

/// Parses any bytes as a `model.safetensors.index.json`.
///
/// # Panics
/// If the index names a file outside its folder.
pub fn index(bytes: &[u8]) {
    let Ok(files) = parse_index(bytes, &FileLimits::DEFAULT) else { return };
    for name in files.values() {
        assert_eq!(Path::new(name).file_name(), Some(name.as_ref()), "is not a plain name");
    }
}

/// Sizes that provoke overflows and off-by-one errors.
const EDGE_SIZES: [u64; 8] = [0, 1, 1 << 31, u32::MAX as u64, 1 << 61, 1 << 63, u64::MAX - 31, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.below(256) as u8),
        4 => drop(bytes.drain(at..(at + random.below(16)).min(bytes.len()))),
        _ => {
            let edge = random.of(&EDGE_SIZES).to_le_bytes();
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
    }
}

/// Returns the file with one to three random mutations.
pub fn mutated(good: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(3) {
        if !bytes.is_empty() {
            mutate(&mut bytes, &mut random);
        }
    }
    bytes
}
