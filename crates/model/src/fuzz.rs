//! The entry points of the fuzz targets that open whole models in memory.

use std::borrow::Cow;
use std::sync::Arc;

use girih_file::{Container, ContainerKind};
use girih_graph::{Key, OutputKind, ScratchPlan, WeightSource};
use girih_tensor::{DType, ErrorKind};
use serde_json::Value as Json;

use crate::adapter::AdapterFiles;
use crate::adapter_config::AdapterConfig;
use crate::adapter_stack::AdapterStack;
use crate::arch::Arch;
use crate::assemble;
use crate::generation::GenerationConfig;
use crate::json::parse_json;
use crate::limits::ModelLimits;
use crate::made_weight::MadeWeight as _;
use crate::mlx_config;
use crate::model::{Interpreted, interpret};
use crate::weights::ModelWeights;

const LIMITS: ModelLimits = ModelLimits::DEFAULT;

/// The key of the graphs that are built, but for their output.
const FUZZ_KEY: Key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Hidden };

/// The maximum number of bytes that are read of one weight.
const READ_BYTES_MAX: usize = 4096;

/// Opens any bytes as a GGUF: refused, or a model that passes `check_model`.
///
/// # Panics
/// If the check fails.
pub fn gguf_model(bytes: &[u8]) {
    let Ok(container) = Container::memory(ContainerKind::Gguf, "fuzz", bytes.to_vec(), &LIMITS.file) else {
        return;
    };
    check_model(container, None, Vec::new());
}

/// Opens any bytes as `model.safetensors` or `config.json` of a model, possibly
/// with an architecture: refused, or a model that passes `check_model`.
///
/// # Panics
/// If the check fails.
pub fn safetensors_model(weights: impl Into<Cow<'static, [u8]>>, config: &[u8], given: Vec<Arch>) {
    let Ok(mut config) = serde_json::from_slice::<Json>(config) else { return };
    let Ok(container) = Container::memory(ContainerKind::Safetensors, "fuzz", weights, &LIMITS.file) else {
        return;
    };
    let Ok(container) = mlx_config::revealed(container, &mut config) else { return };
    check_model(container, Some(&config), given);
}

/// Parses any bytes as a `generation_config.json`.
///
/// # Panics
/// If parsed settings cannot be written and parsed again.
pub fn generation(bytes: &[u8]) {
    let Ok(read) = GenerationConfig::parse(bytes) else { return };
    let written = serde_json::to_vec(&read).expect("numbers can be serialized");
    assert!(GenerationConfig::parse(&written).is_ok(), "{read:?}");
}

/// Opens any bytes as the settings and as the tensors of an adapter of a model, whose files are valid: refused, or an
/// adapter whose matrices can be read.
///
/// # Panics
/// If a matrix of an opened adapter lies outside its file.
pub fn adapter(weights: &'static [u8], config: &[u8], bytes: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Json>(config) else { return };
    let open = |kind| Container::memory(kind, "fuzz", bytes.to_vec(), &LIMITS.file);
    let model = Container::memory(ContainerKind::Safetensors, "fuzz", weights, &LIMITS.file);
    let model = model.and_then(|model| interpret(model, Some(&config), Vec::new().into(), &LIMITS));
    let Interpreted { facts, arch, .. } = model.expect("the model's files are valid");
    if let Ok(json) = parse_json(bytes) {
        let _ = AdapterConfig::peft(&json);
    }
    let settings = AdapterConfig::peft(&serde_json::json!({"peft_type": "LORA"})).expect("it is complete");
    if let Ok(container) = open(ContainerKind::Safetensors) {
        check_adapter(AdapterFiles::of(container, &settings, (&arch, &facts), &LIMITS));
    }
    if let Ok(container) = open(ContainerKind::Gguf) {
        let names = (facts.name.as_str(), &arch.matches.gguf[..]);
        if let Ok(settings) = AdapterConfig::gguf(container.metadata(), names) {
            check_adapter(AdapterFiles::of(container, &settings, (&arch, &facts), &LIMITS));
        }
    }
}

fn check_adapter(opened: girih_tensor::Result<AdapterFiles>) {
    let Ok(files) = opened else { return };
    let files: Arc<[AdapterFiles]> = vec![files].into();
    for weight in files[0].weights() {
        let Some(of) = files[0].shape_of(weight) else { continue };
        let Ok(stacks) = AdapterStack::both(&files, weight, of) else { continue };
        for stack in stacks {
            let (dtype, shape) = stack.info();
            let Ok(bytes) = dtype.bytes(&shape) else { continue };
            let mut end = vec![0; bytes.min(READ_BYTES_MAX)];
            // A number may exceed the format.
            let _ = stack.read((bytes - end.len()) as u64, &mut end);
        }
    }
}

/// Checks that an opened model's graph, if it can be built, can be planned, and
/// that every weight can be read to its end.
fn check_model(container: Container, config: Option<&Json>, given: Vec<Arch>) {
    let only_shipped = given.is_empty();
    let (facts, weights) = match interpret(container, config, given.into(), &LIMITS) {
        Ok(Interpreted { facts, weights, .. }) => (facts, weights),
        // Terminals interpret control characters, so an error must not contain a file's.
        Err(error) => {
            return assert!(!only_shipped || !error.to_string().contains(char::is_control), "{error:?}");
        }
    };
    weights.names().for_each(|name| check_end(&weights, name));
    for output in [OutputKind::Logits, OutputKind::Hidden, OutputKind::Pooled] {
        if let Ok(graph) = assemble::graph(&facts, &weights, Key { output, ..FUZZ_KEY }, DType::F16.into()) {
            ScratchPlan::of(&graph);
        }
    }
}

fn check_end(weights: &ModelWeights, name: &str) {
    let (dtype, shape) = weights.info(name).expect("the name is that of a weight");
    let bytes = dtype.bytes(&shape).expect("the shape was checked when the file was opened");
    let mut end = vec![0; bytes.min(READ_BYTES_MAX)];
    if let Err(error) = weights.read(name, (bytes - end.len()) as u64, &mut end) {
        // A scale of MLX that half precision does not hold.
        assert_eq!(error.kind(), ErrorKind::Refused, "the tensor lies within the file: {error}");
    }
}
