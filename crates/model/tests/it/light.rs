//! On real models, the interpreter computes the same logits as transformers; a
//! model has the same facts in every container.

use std::path::{Path, PathBuf};

use girih_file::Container;
use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::interpret::Interpreter;
use girih_graph::{BLOCK_POSITIONS, Graph, Key, OutputKind, Outputs, Result, Runner, Sequence, Step, load};
use girih_model::arch::{Arch, Biases, Ffn, Mixer, schema};
use girih_model::{ModelFiles, ModelLimits, ModelShape};
use girih_tensor::{DType, ErrorKind, View};

/// The folder of a fixture in the repository.
pub fn committed(name: &str) -> PathBuf {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&root).join("../../tests/fixtures").join(name)
}

/// Fixtures of the repository, and those of the larger test data that were made
/// in the same way.
fn fixtures(names: &[&str]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = names.iter().map(|name| committed(name)).collect();
    if let Some(more) = data("fixtures") {
        folders.extend(
            ["llama32_untied_scaled", "llama_wide", "gemma3_text_scaled"].map(|name| more.join(name)),
        );
    }
    folders
}

/// A folder of the larger test data.
fn data(name: &str) -> Option<PathBuf> {
    crate::data::folder().map(|folder| folder.join(name))
}

pub fn open(path: &Path) -> ModelFiles {
    open_as(path, Vec::new())
}

/// Opens a model, with further architectures.
fn open_as(path: &Path, given: Vec<Arch>) -> ModelFiles {
    ModelFiles::open(path, given, &ModelLimits::DEFAULT)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An architecture that is not part of the binary.
fn cwm() -> Arch {
    let text = std::fs::read_to_string(committed("../archs/cwm.toml")).unwrap();
    schema::parse(&text).unwrap()
}

/// Loads a model on the interpreter, for one sequence of up to `context` tokens.
fn interpreted(model: &ModelFiles, context: u32) -> Box<dyn Runner> {
    interpreted_as(model, context, |key| model.graph(key, DType::F32))
}

/// As [`interpreted`], with the graph that `build` makes.
fn interpreted_as(model: &ModelFiles, context: u32, build: impl Fn(Key) -> Result<Graph>) -> Box<dyn Runner> {
    let key = Key { rows: context, sequences: 1, context, output_rows: context, output: OutputKind::Logits };
    let groups = build(key).expect("the facts fit the weights").groups.len();
    let blocks = vec![context.div_ceil(BLOCK_POSITIONS as u32); groups];
    load(Interpreter, &model.weights, key, &blocks, build).unwrap()
}

/// The logits of every position.
fn logits(runner: &mut dyn Runner, tokens: &[u32]) -> Vec<f32> {
    let blocks: Vec<Block> = (0..runner.blocks()[0]).map(Block).collect();
    let groups: Vec<&[Block]> = runner.blocks().iter().map(|_| blocks.as_slice()).collect();
    let rows = Range32 { start: 0, end: tokens.len() as u32 };
    let sequence = Sequence { blocks: &groups, position: 0, rows, outputs: Outputs::All, spans: &[] };
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    // Models with learned positions have a second input.
    let inputs = [Input::Ids(tokens), Input::Ids(&positions)];
    let inputs = &inputs[..runner.inputs().len().min(2)];
    runner.step(Step { inputs, sequences: &[sequence], watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..tokens.len()).unwrap().to_vec()
}

/// As [`all_logits`], with the graph that `build` makes.
pub fn all_logits_as(model: &ModelFiles, tokens: &[u32], build: impl Fn(Key) -> Result<Graph>) -> Vec<f32> {
    logits(interpreted_as(model, tokens.len() as u32, build).as_mut(), tokens)
}

/// The logits of every position, on the interpreter.
pub fn all_logits(model: &ModelFiles, tokens: &[u32]) -> Vec<f32> {
    logits(interpreted(model, tokens.len() as u32).as_mut(), tokens)
}

pub fn numbers(container: &Container, name: &str) -> Vec<f32> {
    let info = container.tensor(name).unwrap();
    let mut bytes = vec![0; info.bytes as usize];
    container.read(info, 0, &mut bytes).unwrap();
    let view = View::new(info.dtype, info.shape.rows(), info.shape.columns(), &bytes).unwrap();
    let mut numbers = vec![0.0; info.shape.elements()];
    view.unpack_rows(0..view.rows(), &mut numbers);
    numbers
}

/// Compares the logits of every prompt with those of the folder's golden file.
pub fn agrees_with_golden(folder: &Path, model: &ModelFiles) {
    let golden = Container::open(&folder.join("golden.safetensors"), &ModelLimits::DEFAULT.file).unwrap();
    for prompt in 0.. {
        let Ok(info) = golden.tensor(&format!("p{prompt}.input_ids")) else {
            assert!(prompt > 0, "a golden file has at least one prompt");
            break;
        };
        let tokens: Vec<u32> =
            numbers(&golden, &format!("p{prompt}.input_ids")).iter().map(|&id| id as u32).collect();
        assert_eq!(tokens.len(), info.shape.elements());
        let want = numbers(&golden, &format!("p{prompt}.logits_f32"));
        let got = all_logits(model, &tokens);
        let worst = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{}, prompt {prompt}: logits differ by {worst}", folder.display());
    }
}

#[test]
fn the_interpreter_gives_the_logits_of_transformers() {
    for folder in fixtures(&["llama32_tied", "llama_biased", "qwen3", "gemma3_text"]) {
        agrees_with_golden(&folder, &open(&folder));
    }
}

#[test]
fn a_file_adds_an_architecture() {
    let folder = committed("cwm");
    let error = ModelFiles::open(&folder, Vec::new(), &ModelLimits::DEFAULT).unwrap_err();
    let words = "unknown architecture 'CwmForCausalLM'; the section 'Supported models' of docs/commands.md";
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(words), "{error}");
    agrees_with_golden(&folder, &open_as(&folder, vec![cwm()]));
}

/// The sentence named all known architectures, and none as similar.
#[test]
fn an_unknown_architecture_is_refused_with_similar_ones() {
    let refusal = |name: &str| {
        let config = format!(r#"{{"architectures": ["{name}"]}}"#);
        let error = ModelShape::parse(config.as_bytes(), Vec::new(), &ModelLimits::DEFAULT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        error.to_string()
    };
    let similar = |names: &str| format!("; similar ones are {names}; the section");
    let moe = refusal("Qwen3MofForCausalLM");
    assert!(
        moe.contains(&similar("'Qwen3MoeForCausalLM', 'Qwen2MoeForCausalLM', 'Qwen3ForCausalLM'")),
        "{moe}"
    );
    let mixtral = refusal("MixtroForCausalLM");
    assert!(mixtral.contains("'MixtralForCausalLM'"), "{mixtral}");
    let phi = refusal("PhiForCausalLM");
    assert!(!phi.contains("similar") && !phi.contains("LlamaForCausalLM") && phi.len() < 250, "{phi}");
    // The page has what the sentence names.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    assert!(std::fs::read_to_string(page).unwrap().contains("\n## Supported models\n"));
}

#[test]
fn an_added_architecture_refuses_excluded_settings() {
    let folder = committed("cwm");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let biased = config.replace("\"use_cache\": true", "\"mlp_bias\": true");
    assert_ne!(config, biased);
    let copy = tempfile::tempdir().unwrap();
    std::fs::write(copy.path().join("config.json"), biased).unwrap();
    std::fs::copy(folder.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let opened = ModelFiles::open(copy.path(), vec![cwm()], &ModelLimits::DEFAULT);
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("'mlp_bias'"), "{error}");
}

#[test]
fn biases_of_every_projection_are_found() {
    let facts = open(&committed("llama_biased")).facts;
    for layer in facts.layers {
        let Mixer::Attend(attend) = layer.mixer else { panic!("it attends") };
        assert_eq!(attend.biases, Biases { q: true, k: true, v: true, o: true });
        assert!(matches!(layer.ffn, Ffn::Gated { biases: [true, true, true], .. }));
    }
}

#[test]
fn either_style_of_config_gives_the_same_facts() {
    for folder in fixtures(&["llama32_tied", "qwen3", "gemma3_text"]) {
        let hub = open(&folder).facts;
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(folder.join("config.v5.json"), copy.path().join("config.json")).unwrap();
        std::fs::copy(folder.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
        let five = open(copy.path()).facts;
        assert_eq!(hub, five, "{}", folder.display());
    }
}

#[test]
fn either_container_gives_the_same_facts_and_weights() {
    let Some(folder) = data("models/stories260K") else { return };
    let (hf, gguf) = (open(&folder.join("hf-f32")), open(&folder.join("stories260K-f32.gguf")));
    assert_eq!(hf.facts, gguf.facts);
    let names: Vec<&str> = hf.weights.names().collect();
    assert_eq!(names, gguf.weights.names().collect::<Vec<_>>());
    for name in names {
        assert_eq!(hf.weights.numbers(name).unwrap(), gguf.weights.numbers(name).unwrap(), "{name}");
    }
}
