//! Randomly mutated files: each is refused, or its tensors lie within the file.

use girih_file::fuzz::{iebin, iebin_overlay, mutated};
use girih_file::{FileLimits, HeaderContents, ReadAt, gguf, safetensors};
use girih_tensor::Result;

use crate::raw;

const MUTATIONS: u64 = 2_000;

fn survives(good: &[u8], parse: fn(&dyn ReadAt, &FileLimits) -> Result<HeaderContents>) {
    parse(&good, &FileLimits::DEFAULT).expect("the unmutated file is valid");
    for seed in 1..=MUTATIONS {
        let bytes = mutated(good, seed);
        let Ok(contents) = parse(&bytes, &FileLimits::DEFAULT) else { continue };
        for (name, info) in &contents.tensors {
            let end = info.offset + info.bytes;
            assert!(end <= bytes.len() as u64, "seed {seed}: {name} ends at {end} of {}", bytes.len());
        }
    }
}

#[test]
fn mutated_gguf_files_never_panic() {
    survives(&raw::good_gguf(), gguf::parse);
}

#[test]
fn mutated_safetensors_files_never_panic() {
    survives(&raw::good_safetensors(), safetensors::parse);
}

#[test]
fn mutated_manifests_of_iebin_never_panic() {
    let good = raw::good_iebin();
    iebin(&good).expect("the unmutated manifest is valid");
    let accepted = (1..=MUTATIONS).filter(|seed| iebin(&mutated(&good, *seed)).is_ok()).count();
    assert!(accepted > 0, "some mutations change only names");
}

#[test]
fn mutated_overlays_of_iebin_never_panic() {
    let good = raw::good_iebin_overlay();
    iebin_overlay(&good).expect("the unmutated overlay is valid");
    let accepted = (1..=MUTATIONS).filter(|seed| iebin_overlay(&mutated(&good, *seed)).is_ok()).count();
    assert!(accepted > 0, "some mutations change only spaces");
}
