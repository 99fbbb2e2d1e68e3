//! Models that agreed with transformers: their `config.json` still gives the graph and the facts of that time.
//!
//! `scripts/random_models.py FAMILY --configs tests/families.jsonl` verifies a family and adds its configuration.
//! `UPDATE=1` writes the digests anew. A digest that changed asks for `scripts/random_models.py FAMILY`, because a
//! description may have changed with the one that it is based on.

use girih_graph::{Key, OutputKind};
use girih_model::arch::{self, ModelConfig};
use girih_model::{ModelLimits, ModelShape};
use girih_tensor::DType;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

const KEY: Key = Key { rows: 4, sequences: 2, context: 64, output_rows: 2, output: OutputKind::Logits };

/// The first eight bytes of the digest of the graph and of each stated fact, or why there is none without weights.
fn digest(config: &Json) -> String {
    let text = config.to_string();
    let shape = match ModelShape::parse(text.as_bytes(), Vec::new(), &ModelLimits::DEFAULT) {
        Ok(shape) => shape,
        Err(error) => return error.to_string(),
    };
    let mut described = match shape.graph(KEY, DType::F32) {
        Ok(graph) => graph.to_string(),
        Err(error) => return error.to_string(),
    };
    let known = arch::known(&[]).unwrap();
    for parameter in arch::find(&known, &ModelConfig::Hf(config)).unwrap().parameters() {
        described += &format!("{} {:?}\n", parameter.name, parameter.values(&shape.facts));
    }
    let digest = Sha256::digest(described);
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn verified_models_keep_their_graph_and_facts() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/families.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let current: Vec<String> = lines.iter().map(|line| digest(&line["config"])).collect();
    if std::env::var_os("UPDATE").is_some() {
        let written = lines.iter().zip(&current).map(|(line, digest)| {
            let mut line = line.clone();
            line["digest"] = json!(digest);
            format!("{line}\n")
        });
        std::fs::write(path, written.collect::<String>()).unwrap();
        return;
    }
    assert!(lines.len() > 50, "the file has lost its lines");
    for (line, digest) in lines.iter().zip(&current) {
        let family = line["family"].as_str().unwrap();
        assert_eq!(line["digest"], json!(digest), "run scripts/random_models.py {family}, then UPDATE=1");
    }
}
