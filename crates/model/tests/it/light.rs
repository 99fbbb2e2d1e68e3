//! First light: the definition of the operators, run on real models, gives the
//! logits that transformers gives; and one model has one set of facts.

use std::path::{Path, PathBuf};

use girih_graph::backend::{Block, Inputs, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{BLOCK_POSITIONS, Key, Lane, Runner, Step, Variant, Want, load};
use girih_model::file::Container;
use girih_model::{Limits, Model};
use girih_tensor::{DType, View};

use crate::data;

/// The fixtures that are part of the repository.
fn committed(name: &str) -> PathBuf {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&root).join("../../tests/fixtures").join(name)
}

fn open(path: &Path) -> Model {
    Model::open(path, Vec::new(), &Limits::DEFAULT)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A model on the interpreter, for one sequence of up to `context` tokens.
fn interpreted(model: &Model, context: u32) -> Box<dyn Runner> {
    let key = Key { rows: context, lanes: 1, context, wanted: context, variant: Variant::GENERATE };
    let build =
        |key| model.graph(key, DType::F32).map_err(|error| girih_graph::Error::new(error.to_string()));
    let groups = build(key).expect("the facts fit the weights").groups.len();
    let blocks = vec![context.div_ceil(BLOCK_POSITIONS as u32); groups];
    load(Interpreter, &model.weights, key, &blocks, build).unwrap()
}

/// The logits of every position.
fn logits(runner: &mut dyn Runner, tokens: &[u32]) -> Vec<f32> {
    let blocks: Vec<Block> = (0..runner.blocks()[0]).map(Block).collect();
    let groups: Vec<&[Block]> = runner.blocks().iter().map(|_| blocks.as_slice()).collect();
    let rows = Range32 { start: 0, end: tokens.len() as u32 };
    let lane = Lane { blocks: &groups, position: 0, rows, want: Want::All, spans: &[] };
    let mut output = vec![0.0; tokens.len() * runner.width()];
    let step =
        Step { inputs: Inputs::Tokens(tokens), lanes: &[lane], output: &mut output, watch: &mut Unwatched };
    runner.step(step).unwrap();
    output
}

fn numbers(container: &Container, name: &str) -> Vec<f32> {
    let info = container.tensor(name).unwrap();
    let mut bytes = vec![0; info.bytes as usize];
    container.read(info, 0, &mut bytes).unwrap();
    let view = View::new(info.dtype, info.shape.rows(), info.shape.columns(), &bytes).unwrap();
    let mut numbers = vec![0.0; info.shape.elements()];
    view.unpack_rows(0..view.rows(), &mut numbers);
    numbers
}

/// Compares the logits of every prompt with those of a golden file.
fn agrees_with_golden(folder: &Path) {
    let model = open(folder);
    let golden = Container::open(&folder.join("golden.safetensors"), &Limits::DEFAULT).unwrap();
    for prompt in 0.. {
        let Ok(info) = golden.tensor(&format!("p{prompt}.input_ids")) else {
            assert!(prompt > 0, "a golden file has at least one prompt");
            break;
        };
        let tokens: Vec<u32> =
            numbers(&golden, &format!("p{prompt}.input_ids")).iter().map(|&id| id as u32).collect();
        assert_eq!(tokens.len(), info.shape.elements());
        let want = numbers(&golden, &format!("p{prompt}.logits_f32"));
        let got = logits(interpreted(&model, tokens.len() as u32).as_mut(), &tokens);
        let worst = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{}, prompt {prompt}: logits differ by {worst}", folder.display());
    }
}

#[test]
fn the_interpreter_gives_the_logits_of_transformers() {
    for name in ["llama32_tied", "qwen3", "gemma3_text"] {
        agrees_with_golden(&committed(name));
    }
    let Some(fixtures) = data::folder().map(|data| data.join("fixtures")) else { return };
    for name in ["llama32_untied_scaled", "llama_wide", "gemma3_text_scaled"] {
        agrees_with_golden(&fixtures.join(name));
    }
}

#[test]
fn either_style_of_config_gives_the_same_facts() {
    let mut folders: Vec<PathBuf> = ["llama32_tied", "qwen3", "gemma3_text"].map(committed).into();
    if let Some(fixtures) = data::folder().map(|data| data.join("fixtures")) {
        folders.extend(
            ["llama32_untied_scaled", "llama_wide", "gemma3_text_scaled"].map(|name| fixtures.join(name)),
        );
    }
    for folder in folders {
        let hub = open(&folder).facts;
        let copy = std::env::temp_dir().join(format!("girih-v5-{}", std::process::id()));
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::copy(folder.join("config.v5.json"), copy.join("config.json")).unwrap();
        std::fs::copy(folder.join("model.safetensors"), copy.join("model.safetensors")).unwrap();
        let five = open(&copy).facts;
        std::fs::remove_dir_all(&copy).unwrap();
        assert_eq!(hub, five, "{}", folder.display());
    }
}

#[test]
fn either_container_gives_the_same_facts_and_weights() {
    let Some(folder) = data::folder().map(|data| data.join("models/stories260K")) else { return };
    let (hf, gguf) = (open(&folder.join("hf-f32")), open(&folder.join("stories260K-f32.gguf")));
    assert_eq!(hf.facts, gguf.facts);
    let names: Vec<&str> = hf.weights.names().collect();
    assert_eq!(names, gguf.weights.names().collect::<Vec<_>>());
    for name in names {
        assert_eq!(hf.weights.numbers(name).unwrap(), gguf.weights.numbers(name).unwrap(), "{name}");
    }
}
