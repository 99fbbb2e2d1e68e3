//! Damaged folders of MLX: each is refused, or every weight can be read to its end.

use std::path::Path;

use girih_file::fuzz::mutated;
use girih_model::fuzz::safetensors_model;

const MUTATIONS: u64 = 400;

#[test]
fn mutated_folders_of_mlx_are_refused_or_consistent() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/mlx");
    let [weights, config] =
        ["model.safetensors", "config.json"].map(|name| std::fs::read(folder.join(name)).expect("a fixture"));
    safetensors_model(weights.clone(), &config, Vec::new());
    let length = u64::from_le_bytes(*weights.first_chunk().expect("it has a header")) as usize;
    let (header, numbers) = weights.split_at(8 + length);
    for seed in 1..=MUTATIONS {
        safetensors_model([&mutated(header, seed)[..], numbers].concat(), &config, Vec::new());
        safetensors_model(weights.clone(), &mutated(&config, seed), Vec::new());
    }
}
