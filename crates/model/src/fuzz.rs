//! The entries of the fuzz targets that need more than the public interface:
//! whole models in memory.

use std::borrow::Cow;

use girih_file::{Container, Kind};
use girih_graph::{InputKind, Key, OutputKind, ScratchPlan, Variant, WeightSource};
use girih_tensor::DType;
use serde_json::Value as Json;

use crate::arch::Arch;
use crate::build;
use crate::generation::Generation;
use crate::limits::Limits;
use crate::model::understand;
use crate::weights::Weights;

const LIMITS: Limits = Limits::DEFAULT;

/// What the graph of a model is built for.
const KEY: Key = Key {
    rows: 4,
    sequences: 1,
    context: 64,
    output_rows: 1,
    variant: Variant { input: InputKind::Tokens, output: OutputKind::Logits },
};

/// The most bytes of one weight that are read.
const READ: usize = 4096;

/// Any bytes as a GGUF: refused, or a model that keeps its promises.
///
/// # Panics
/// If it does not.
pub fn gguf_model(bytes: &[u8]) {
    let Ok(container) = Container::memory(Kind::Gguf, "fuzz", bytes.to_vec(), &LIMITS.file) else { return };
    check_model(container, None, Vec::new());
}

/// Any bytes as `model.safetensors` or `config.json` of a model, perhaps with
/// an architecture: refused, or a model that keeps its promises.
///
/// # Panics
/// If it does not.
pub fn safetensors_model(weights: impl Into<Cow<'static, [u8]>>, config: &[u8], given: Vec<Arch>) {
    let Ok(config) = serde_json::from_slice::<Json>(config) else { return };
    let Ok(container) = Container::memory(Kind::Safetensors, "fuzz", weights, &LIMITS.file) else { return };
    check_model(container, Some(&config), given);
}

/// Any bytes as a `generation_config.json`.
///
/// # Panics
/// If settings that were read do not survive being written.
pub fn generation(bytes: &[u8]) {
    let Ok(read) = Generation::parse(bytes) else { return };
    let written = serde_json::to_vec(&read).expect("settings of numbers can be written");
    assert!(Generation::parse(&written).is_ok(), "{read:?}");
}

/// A model that is understood has a graph that can be planned, or none, and
/// every weight can be read to its end.
fn check_model(container: Container, config: Option<&Json>, given: Vec<Arch>) {
    let ours = given.is_empty();
    let (facts, weights) = match understand(container, config, given, &LIMITS) {
        Ok((facts, weights, _)) => (facts, weights),
        // A terminal obeys control characters, so none may come from a file.
        Err(error) => return assert!(!ours || !error.to_string().contains(char::is_control), "{error:?}"),
    };
    weights.names().for_each(|name| check_end(&weights, name));
    if let Ok(graph) = build::graph(&facts, &weights, KEY, DType::F16) {
        ScratchPlan::of(&graph);
    }
}

fn check_end(weights: &Weights, name: &str) {
    let (dtype, shape) = weights.info(name).expect("the name is one of the weights'");
    let bytes = dtype.bytes(&shape).expect("the shape was checked when the file was opened");
    let mut end = vec![0; bytes.min(READ)];
    weights.read(name, (bytes - end.len()) as u64, &mut end).expect("the bytes are there");
}
