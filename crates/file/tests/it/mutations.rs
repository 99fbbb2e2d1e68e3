//! Files spoiled at random: each is refused, or describes only bytes that it has.

use girih_file::fuzz::spoiled;
use girih_file::{Contents, Limits, ReadAt, gguf, safetensors};
use girih_tensor::Result;

use crate::raw;

const MUTATIONS: u64 = 2_000;

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
