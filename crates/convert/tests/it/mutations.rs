//! Randomly mutated models: each is refused, or passes the checks of the fuzz target.

use std::path::{Path, PathBuf};

use girih_file::fuzz::mutated;
use girih_model::ModelFiles;
use girih_words::TextProcessor;

const MUTATIONS: u64 = 2_000;

/// The models that the fuzz target `gguf_model` starts from.
fn seeds() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf_model");
    let entries = folder.read_dir().expect("the folder of seeds");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn mutated_gguf_models_are_refused_or_consistent() {
    for path in seeds() {
        ModelFiles::open(&path, Vec::new(), &girih_model::ModelLimits::DEFAULT)
            .expect("the unmutated model is valid");
        TextProcessor::open(&path, &girih_words::TextLimits::DEFAULT).expect("its tokenizer is valid");
        let good = std::fs::read(&path).expect("a file that was just opened");
        (1..=MUTATIONS).for_each(|seed| {
            let bytes = mutated(&good, seed);
            girih_words::fuzz::gguf_tokenizer(&bytes);
            girih_model::fuzz::gguf_model(&bytes);
        });
    }
}
