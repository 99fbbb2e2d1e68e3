//! What the fuzz targets and the tests of spoiled files share: the entry of
//! `index`, whose parser is not public, and the spoiling.

use std::path::Path;

use girih_tensor::Random;

use crate::limits::Limits;
use crate::open::parse_index;

/// Any bytes as a `model.safetensors.index.json`.
///
/// # Panics
/// If it leads out of its folder.
pub fn index(bytes: &[u8]) {
    let Ok(places) = parse_index(bytes, &Limits::DEFAULT) else { return };
    for name in places.values() {
        assert_eq!(Path::new(name).file_name(), Some(name.as_ref()), "is no plain name");
    }
}

/// Numbers at which sizes tend to go wrong.
const EDGES: [u64; 8] = [0, 1, 1 << 31, u32::MAX as u64, 1 << 61, 1 << 63, u64::MAX - 31, u64::MAX];

fn spoil(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.below(256) as u8),
        4 => drop(bytes.drain(at..(at + random.below(16)).min(bytes.len()))),
        _ => {
            let edge = random.of(&EDGES).to_le_bytes();
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
    }
}

/// The same file, spoiled in one to three places.
pub fn spoiled(good: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(3) {
        if !bytes.is_empty() {
            spoil(&mut bytes, &mut random);
        }
    }
    bytes
}
