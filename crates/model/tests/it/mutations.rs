//! Files spoiled at random: each is refused, or describes only bytes that it has.

use std::path::{Path, PathBuf};

use girih_model::file::{Contents, ReadAt, gguf, safetensors};
use girih_model::words::Words;
use girih_model::{Limits, Model, Result, fuzz};

use crate::raw;

const MUTATIONS: u64 = 2_000;

/// Marsaglia's xorshift64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
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
            let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
    }
}

/// The same file, spoiled in one to three places.
fn spoiled(good: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(3) {
        if !bytes.is_empty() {
            spoil(&mut bytes, &mut random);
        }
    }
    bytes
}

fn survives(good: &[u8], parse: fn(&dyn ReadAt, &Limits) -> Result<Contents>) {
    parse(&good, &Limits::DEFAULT).expect("the file is good before it is spoiled");
    for seed in 1..=MUTATIONS {
        let bytes = spoiled(good, seed);
        let Ok(contents) = parse(&bytes, &Limits::DEFAULT) else { continue };
        for (name, info) in &contents.tensors {
            let end = info.offset + info.bytes;
            assert!(end <= bytes.len() as u64, "seed {seed}: {name} ends at {end} of {}", bytes.len());
        }
    }
}

#[test]
fn spoiled_gguf_files_never_panic() {
    survives(&raw::good_gguf(), gguf::parse);
}

#[test]
fn spoiled_safetensors_files_never_panic() {
    survives(&raw::good_safetensors(), safetensors::parse);
}

/// The models that the fuzz target `gguf_model` starts from.
fn seeds() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf_model");
    let entries = folder.read_dir().expect("the folder of seeds");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn spoiled_gguf_models_keep_their_promises() {
    for path in seeds() {
        Model::open(&path, Vec::new(), &Limits::DEFAULT).expect("the model is good before it is spoiled");
        Words::open(&path, &Limits::DEFAULT).expect("its words are good, too");
        let good = std::fs::read(&path).expect("a file that was just opened");
        (1..=MUTATIONS).for_each(|seed| fuzz::gguf_model(&spoiled(&good, seed)));
    }
}
