//! Models in two stages: cut before any layer, the CPU computes the bits of the whole model.

use std::path::Path;
use std::sync::Arc;

use girih::{DType, Unwatched, backend};
use girih_engine::{Engine, EngineLimits, cache};
use girih_graph::description::{AnyBackend, NoServices, Services};
use girih_graph::staged::StagedBackend;
use girih_graph::stages::layer_count;
use girih_graph::{Key, OutputKind};
use girih_model::arch::ArchOptions;
use girih_model::{GraphOptions, ModelFiles, ModelLimits};

const KEY: Key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
const OPTIONS: GraphOptions = GraphOptions { state: DType::F16, given_rows: false, hidden_rows: false };

fn cpu() -> Box<dyn AnyBackend> {
    let services: Arc<dyn Services> = Arc::new(NoServices);
    backend("cpu").unwrap().with_threads(Some(1)).open(&services).unwrap()
}

/// The logits of two tokens that follow a prompt in several chunks.
fn logits(files: &ModelFiles, backend: Box<dyn AnyBackend>) -> Vec<u32> {
    let build = |key| files.graph(key, OPTIONS);
    let blocks = cache::blocks_of(&build(KEY).unwrap());
    let runner = backend.load(&files.weights, KEY, &blocks, &build).unwrap_or_else(|error| panic!("{error}"));
    let mut engine = Engine::new(runner, EngineLimits::new(KEY.context, KEY.rows)).unwrap();
    let prompt: Vec<u32> = (1..21).collect();
    let mut bits = Vec::new();
    for end in [19, 20] {
        let row = engine.last_logits(&prompt[..end], &mut Unwatched).unwrap();
        bits.extend(row.iter().map(|value| value.to_bits()));
    }
    bits
}

/// Windows, carried state, rows that every layer reads, and latent attention.
#[test]
fn a_model_in_two_stages_has_the_bits_of_the_whole() {
    let mut refused = Vec::new();
    for name in
        ["qwen3", "gemma3_text", "gemma4", "qwen3_5", "lfm2", "granitemoehybrid", "deepseek_v3", "gpt_oss"]
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
        let files = ModelFiles::open(&folder, ArchOptions::default(), &ModelLimits::default()).unwrap();
        let graph = files.graph(KEY, OPTIONS).unwrap();
        let whole = logits(&files, cpu());
        for layer in 0..layer_count(&graph) {
            let staged = StagedBackend::new(cpu(), cpu(), layer);
            match staged.refuses(&graph).first() {
                None => {
                    assert_eq!(logits(&files, Box::new(staged)), whole, "{name} cut before layer {layer}")
                }
                Some(refusal) => refused.push((name, layer, refusal.reason.clone())),
            }
        }
    }
    // Its later layers read keys of its first two.
    assert!(
        refused.iter().all(|(_, _, reason)| reason.ends_with("cut before an earlier layer")),
        "{refused:?}"
    );
    assert_eq!(
        refused.iter().map(|(name, layer, _)| (*name, *layer)).collect::<Vec<_>>(),
        [("gemma4", 1), ("gemma4", 2), ("gemma4", 3)]
    );
}
