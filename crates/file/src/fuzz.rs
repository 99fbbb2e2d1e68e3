//! The entry points of the fuzz targets `index`, `iebin` and `iebin_overlay`, whose parsers are not public, and
//! the mutations of files that tests share.

use std::path::{Path, PathBuf};

use girih_tensor::{Random, Result};

use crate::container::{Container, Shard};
use crate::limits::FileLimits;
use crate::open::parse_index;
use crate::source::ByteSource;
use crate::{iebin, iebin_overlay};

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

/// The size of each file beside a manifest of IEBIN, except [`SCALES`].
const IEBIN_FILE_BYTES: usize = 4096;

/// The file beside a manifest with the scales of two rows, of half precision.
pub const SCALES: &str = "scales.bin";

/// A manifest of four tensors of 96 bytes; only the first has an offset.
const OVERLAID_MANIFEST: &[u8] = br#"{"format":"iebin.v1","version":1,"tensors":[
    {"name":"a","dtype":"u8","shape":[96],"offset":0},
    {"name":"b","dtype":"u8","shape":[96]},
    {"name":"c","dtype":"u8","shape":[96]},
    {"name":"d","dtype":"i8","shape":[96],"nbytes":96}]}"#;

/// Parses any bytes as a `model.dedup.json` beside a manifest of four tensors of 96 bytes. The first tensor needs no
/// overlay. Each byte of the masks is 0x5a, which has four bits set; the files have 4096 bytes. Reads both ends of each tensor.
///
/// # Errors
/// When the overlay is refused.
///
/// # Panics
/// As [`iebin`].
pub fn iebin_overlay(bytes: &[u8]) -> Result<Container> {
    open_iebin(OVERLAID_MANIFEST, Some(bytes))
}

/// Parses any bytes as a `model.ie.json` whose files have 4096 bytes, [`SCALES`] four; reads both ends of each tensor.
///
/// # Errors
/// When the manifest is refused.
///
/// # Panics
/// If a tensor that was not refused cannot be read, or a file outside the folder is opened.
pub fn iebin(bytes: &[u8]) -> Result<Container> {
    open_iebin(bytes, None)
}

fn open_iebin(bytes: &[u8], overlay: Option<&[u8]>) -> Result<Container> {
    let open = |name: &str| {
        assert_eq!(Path::new(name).file_name(), Some(name.as_ref()), "is not a plain name");
        let bytes = match name {
            iebin::MANIFEST => bytes.to_vec(),
            iebin_overlay::OVERLAY => overlay.unwrap_or_default().to_vec(),
            // 1.0 in half precision.
            SCALES => [0, 0x3c].repeat(2),
            _ => vec![0x5a; IEBIN_FILE_BYTES],
        };
        Ok(Shard { path: PathBuf::from(name), source: ByteSource::memory(bytes) })
    };
    let container = iebin::open(&FileLimits::DEFAULT, &open, overlay.is_some())?;
    for (name, info) in container.tensors() {
        let mut end = [0; 16];
        let count = info.bytes.min(end.len() as u64);
        for offset in [0, info.bytes - count] {
            let read = container.read(info, offset, &mut end[..count as usize]);
            read.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    Ok(container)
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
