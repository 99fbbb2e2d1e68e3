//! Encoders: facts from every style of configuration, hidden states and pooled rows of
//! transformers on the interpreter, and refusals by name.

use std::collections::BTreeMap;
use std::path::Path;

use girih_file::{Container, ContainerWriter, Metadata, MetadataValue, NewTensor};
use girih_graph::backend::{Input, Range32, Watch};
use girih_graph::interpret::Interpreter;
use girih_graph::{Key, OutputKind, Outputs, Pooling, Runner, Sequence, Step, load};
use girih_model::arch::{Facts, Mixer, PoolingFacts};
use girih_model::{ModelFiles, ModelLimits, layer_output};
use girih_tensor::{DType, Shape};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::light::{committed, numbers, open};

/// The encoders of the repository.
const NAMES: [&str; 2] = ["bert", "nomic_bert"];

/// The largest difference from transformers in single precision: hidden states are about 1, and
/// the interpreter sums in double precision.
const CLOSE: f32 = 2e-5;

/// A copy of a fixture's folder, removed when it is dropped.
pub struct Copy(TempDir);

impl Copy {
    pub fn of(fixture: &Path) -> Copy {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
        }
        Copy(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Sets keys of `config.json`.
    pub fn set(&self, values: &Json) {
        let text = std::fs::read(self.0.path().join("config.json")).unwrap();
        let mut config: Json = serde_json::from_slice(&text).unwrap();
        for (key, value) in values.as_object().unwrap() {
            config[key] = value.clone();
        }
        self.write("config.json", config.to_string());
    }

    pub fn open(&self) -> girih_tensor::Result<ModelFiles> {
        ModelFiles::open(self.path(), Vec::new(), &ModelLimits::DEFAULT)
    }

    /// The error of opening.
    pub fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

/// Collects the hidden states.
struct Hidden(Vec<(String, Vec<f32>)>);

impl Hidden {
    fn of(layers: usize) -> Hidden {
        let names = std::iter::once("embed".to_owned()).chain((0..layers).map(layer_output));
        Hidden(names.map(|name| (name, Vec::new())).collect())
    }
}

impl Watch for Hidden {
    fn wants(&self, name: &str) -> bool {
        self.0.iter().any(|(wanted, _)| wanted == name)
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        let (_, values) = self.0.iter_mut().find(|(wanted, _)| wanted == name).unwrap();
        values.extend_from_slice(data);
    }
}

/// The results of one step of several texts.
fn encode(
    runner: &mut dyn Runner,
    texts: &[(Vec<u32>, Vec<u32>)],
    outputs: Outputs,
    watch: &mut dyn Watch,
) -> Vec<f32> {
    let tokens: Vec<u32> = texts.iter().flat_map(|text| text.0.clone()).collect();
    let types: Vec<u32> = texts.iter().flat_map(|text| text.1.clone()).collect();
    let positions: Vec<u32> = texts.iter().flat_map(|text| 0..text.0.len() as u32).collect();
    let names: Vec<String> = runner.inputs().iter().map(|input| input.name.clone()).collect();
    let inputs: Vec<Input<'_>> = names
        .iter()
        .map(|name| match name.as_str() {
            "tokens" => Input::Ids(&tokens),
            "token_types" => Input::Ids(&types),
            "positions" => Input::Ids(&positions),
            other => panic!("unknown input {other}"),
        })
        .collect();
    let mut start = 0;
    let sequences: Vec<Sequence<'_>> = texts
        .iter()
        .map(|text| {
            let rows = Range32 { start, end: start + text.0.len() as u32 };
            start = rows.end;
            Sequence { blocks: &[], position: 0, rows, outputs, spans: &[] }
        })
        .collect();
    runner.step(Step { inputs: &inputs, sequences: &sequences, watch }).unwrap();
    let rows = if outputs == Outputs::All { tokens.len() } else { texts.len() };
    runner.output().rows(0..rows).unwrap().to_vec()
}

fn interpreted(model: &ModelFiles, output: OutputKind) -> Box<dyn Runner> {
    let key = Key { rows: 64, sequences: 2, context: 64, output_rows: 64, output };
    load(Interpreter, &model.weights, key, &[], |key| model.graph(key, DType::F32)).unwrap()
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

fn ids(golden: &Container, name: &str) -> Vec<u32> {
    numbers(golden, name).iter().map(|id| *id as u32).collect()
}

/// A prompt of a golden: tokens and token types.
fn prompt(golden: &Container, index: usize) -> (Vec<u32>, Vec<u32>) {
    (ids(golden, &format!("p{index}.input_ids")), ids(golden, &format!("p{index}.token_type_ids")))
}

#[test]
fn hidden_states_and_means_are_those_of_transformers() {
    for name in NAMES {
        let folder = committed(name);
        let (model, limits) = (open(&folder), ModelLimits::DEFAULT.file);
        let golden = Container::open(&folder.join("golden.safetensors"), &limits).unwrap();
        let mut runner = interpreted(&model, OutputKind::Pooled);
        for index in 0..2 {
            let mut hidden = Hidden::of(model.facts.layers.len());
            let pooled = encode(runner.as_mut(), &[prompt(&golden, index)], Outputs::None, &mut hidden);
            let want = numbers(&golden, &format!("p{index}.hidden_f32"));
            let got: Vec<f32> = hidden.0.iter().flat_map(|(_, values)| values.clone()).collect();
            let far = worst(&got, &want);
            assert!(far < CLOSE, "{name}, prompt {index}: hidden states differ by {far}");
            let far = worst(&pooled, &numbers(&golden, &format!("p{index}.mean_f32")));
            assert!(far < CLOSE, "{name}, prompt {index}: the mean differs by {far}");
        }
    }
}

#[test]
fn texts_of_one_step_do_not_see_each_other() {
    for name in NAMES {
        let folder = committed(name);
        let model = open(&folder);
        let golden = Container::open(&folder.join("golden.safetensors"), &ModelLimits::DEFAULT.file).unwrap();
        let texts = [0, 1].map(|index| {
            let tokens = prompt(&golden, index).0;
            let types = vec![0; tokens.len()];
            (tokens, types)
        });
        let mut runner = interpreted(&model, OutputKind::Hidden);
        let got = encode(runner.as_mut(), &texts, Outputs::All, &mut Hidden::of(0));
        let width = model.facts.sizes.width;
        let padded = numbers(&golden, "batch.last_hidden_f32");
        let longest = texts[1].0.len() * width;
        let short = texts[0].0.len() * width;
        let want = [&padded[..short], &padded[longest..]].concat();
        let far = worst(&got, &want);
        assert!(far < CLOSE, "{name}: the rows of transformers' padded batch differ by {far}");
    }
}

#[test]
fn every_style_of_config_gives_the_same_facts() {
    for (name, others) in
        [("bert", &["config.v5.json"][..]), ("nomic_bert", &["config.v5.json", "config.hub.json"])]
    {
        let folder = committed(name);
        let facts = open(&folder).facts;
        assert!(facts.is_encoder());
        for other in others {
            let copy = Copy::of(&folder);
            copy.write("config.json", std::fs::read(folder.join(other)).unwrap());
            assert_eq!(copy.open().unwrap().facts, facts, "{name}, {other}");
        }
    }
}

#[test]
fn settings_of_other_models_are_refused_by_name() {
    for (name, key, value) in [
        ("bert", "position_embedding_type", json!("relative_key")),
        ("bert", "is_decoder", json!(true)),
        ("bert", "hidden_act", json!("mish")),
        ("bert", "max_position_embeddings", json!(129)),
        ("nomic_bert", "prenorm", json!(true)),
        ("nomic_bert", "causal", json!(true)),
        ("nomic_bert", "rotary_emb_fraction", json!(0.5)),
        ("nomic_bert", "rotary_emb_interleaved", json!(true)),
        ("nomic_bert", "rotary_emb_scale_base", json!(512)),
        ("nomic_bert", "rotary_scaling_factor", json!(2)),
        ("nomic_bert", "qkv_proj_bias", json!(true)),
        ("nomic_bert", "mlp_fc1_bias", json!(true)),
        ("nomic_bert", "scale_attn_weights", json!(false)),
    ] {
        let folder = committed(name);
        let copy = Copy::of(&folder);
        copy.set(&json!({ key: value }));
        let error = copy.error();
        assert!(error.contains(&format!("'{key}'")), "{error}");
    }
}

#[test]
fn outputs_that_a_model_lacks_are_refused_by_name() {
    let folder = committed("bert");
    let key = Key { rows: 4, sequences: 1, context: 4, output_rows: 4, output: OutputKind::Logits };
    let error = open(&folder).graph(key, DType::F16).unwrap_err().to_string();
    assert_eq!(
        error,
        "this model of architecture bert has no logits; it has hidden states and a pooled output"
    );
    let folder = committed("qwen3");
    let pooled = Key { output: OutputKind::Pooled, ..key };
    let error = open(&folder).graph(pooled, DType::F16).unwrap_err().to_string();
    assert_eq!(
        error,
        "this model of architecture qwen3 has no pooled output; it has logits and hidden states"
    );
}

/// The facts of a model with the files of sentence-transformers.
fn pooled_by(folder: &Path, modules: &Json, pooling: &Json) -> girih_tensor::Result<Facts> {
    let copy = Copy::of(folder);
    copy.write("modules.json", modules.to_string());
    copy.write("1_Pooling/config.json", pooling.to_string());
    Ok(copy.open()?.facts)
}

fn module(kind: &str, path: &str) -> Json {
    json!({ "idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}") })
}

#[test]
fn pooling_is_that_of_the_models_files() {
    let folder = committed("bert");
    assert_eq!(open(&folder).facts.pooling, Some(PoolingFacts { how: Pooling::Mean, normalized: false }));
    let parts =
        [module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")];
    for (modules, key, how, normalized) in [
        (&parts[..], "pooling_mode_cls_token", Pooling::First, true),
        (&parts[..2], "pooling_mode_mean_tokens", Pooling::Mean, false),
        (&parts[..], "pooling_mode_lasttoken", Pooling::Last, true),
    ] {
        let config = json!({ "word_embedding_dimension": 48, "pooling_mode_max_tokens": false, key: true });
        let facts = pooled_by(&folder, &json!(modules), &config).unwrap();
        assert_eq!(facts.pooling, Some(PoolingFacts { how, normalized }), "{key}");
    }
}

#[test]
fn unknown_poolings_are_refused_by_name() {
    let folder = committed("bert");
    let parts = |last: Json| json!([module("Transformer", ""), module("Pooling", "1_Pooling"), last]);
    let usual = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]);
    let mean = json!({ "pooling_mode_mean_tokens": true });
    for (modules, pooling, words) in [
        (parts(module("Dense", "2_Dense")), &mean, "'Dense'"),
        (usual.clone(), &json!({ "pooling_mode_max_tokens": true }), "'pooling_mode_max_tokens'"),
        (
            usual.clone(),
            &json!({ "pooling_mode_weightedmean_tokens": true }),
            "'pooling_mode_weightedmean_tokens'",
        ),
        (usual.clone(), &json!({}), "no pooling mode"),
        (
            usual.clone(),
            &json!({ "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true }),
            "2 pooling modes",
        ),
        (
            usual.clone(),
            &json!({ "pooling_mode_mean_tokens": true, "include_prompt": false }),
            "'include_prompt'",
        ),
        (json!([module("Transformer", ""), module("Pooling", "../elsewhere")]), &mean, "'../elsewhere'"),
        (json!([module("Transformer", "0_Bert"), module("Pooling", "1_Pooling")]), &mean, "'0_Bert'"),
        (json!([module("Transformer", "")]), &mean, "'Pooling'"),
        (json!({ "modules": [] }), &mean, "modules.json"),
    ] {
        let error = pooled_by(&folder, &modules, pooling).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_settings_of_sentences_bound_texts_or_are_refused() {
    let folder = committed("bert");
    let open = |files: &[(&str, Json)]| {
        let copy = Copy::of(&folder);
        copy.write(
            "modules.json",
            json!([module("Transformer", ""), module("Pooling", "1_Pooling")]).to_string(),
        );
        copy.write("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": true }).to_string());
        files.iter().for_each(|(name, content)| copy.write(name, content.to_string()));
        copy.open().map(|model| model.facts.sizes.context).map_err(|error| error.to_string())
    };
    let bert = |content| [("sentence_bert_config.json", content)];
    assert_eq!(open(&[]), Ok(128));
    assert_eq!(open(&bert(json!({ "max_seq_length": 64, "do_lower_case": false }))), Ok(64));
    assert_eq!(open(&bert(json!({ "max_seq_length": 4096 }))), Ok(128));
    for (content, words) in [
        (json!({ "max_seq_length": 0 }), "max_seq_length is 0; a positive integer is needed"),
        (json!({ "do_lower_case": true }), "remove 'do_lower_case'"),
    ] {
        let error = open(&bert(content)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let prompts = [("config_sentence_transformers.json", json!({ "default_prompt_name": "query" }))];
    let error = open(&prompts).unwrap_err();
    assert!(error.contains("adds the prompt \"query\" to every text"), "{error}");
}

#[test]
fn a_link_to_a_missing_list_of_modules_is_an_error() {
    let copy = Copy::of(&committed("bert"));
    std::os::unix::fs::symlink("missing", copy.path().join("modules.json")).unwrap();
    assert!(copy.open().unwrap_err().to_string().contains("modules.json"));
}

/// A tensor of a file and its bytes.
pub type Tensor = (NewTensor, Vec<u8>);

/// Every tensor of a model's container.
pub fn tensors(model: &ModelFiles) -> Vec<Tensor> {
    let container = model.weights.container();
    let read = container.tensors().iter().map(|(name, info)| {
        let mut bytes = vec![0; info.bytes as usize];
        container.read(info, 0, &mut bytes).unwrap();
        (NewTensor { name: name.clone(), dtype: info.dtype, shape: info.shape }, bytes)
    });
    read.collect()
}

fn write_all(mut writer: ContainerWriter, tensors: &[Tensor]) {
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (_, bytes) = tensors.iter().find(|(tensor, _)| tensor.name == name).unwrap();
        writer.append(&name, bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// Replaces the weights of a copied model.
pub fn write_weights(copy: &Copy, tensors: &[Tensor]) {
    let path = copy.path().join("model.safetensors");
    std::fs::remove_file(&path).unwrap();
    let news: Vec<NewTensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    write_all(ContainerWriter::safetensors(&path, &BTreeMap::new(), &news).unwrap(), tensors);
}

pub fn check_equal(model: &ModelFiles, other: &ModelFiles) {
    assert_eq!(other.facts, model.facts);
    let names: Vec<&str> = model.weights.names().collect();
    assert_eq!(other.weights.names().collect::<Vec<_>>(), names);
    for name in names {
        assert!(other.weights.numbers(name).unwrap() == model.weights.numbers(name).unwrap(), "{name}");
    }
}

#[test]
fn a_model_saved_as_a_part_of_another_is_opened() {
    let folder = committed("bert");
    let model = open(&folder);
    let copy = Copy::of(&folder);
    let renamed = tensors(&model)
        .into_iter()
        .map(|(tensor, bytes)| (NewTensor { name: format!("bert.{}", tensor.name), ..tensor }, bytes));
    let head =
        NewTensor { name: "cls.predictions.bias".to_owned(), dtype: DType::F32, shape: Shape::vector(1) };
    write_weights(&copy, &renamed.chain([(head, vec![0; 4])]).collect::<Vec<_>>());
    check_equal(&model, &copy.open().unwrap());
}

#[test]
fn parts_of_a_fused_projection_are_its_rows() {
    let folder = committed("nomic_bert");
    let model = open(&folder);
    let fused = numbers(model.weights.container(), "encoder.layers.1.attn.Wqkv.weight");
    let part = |name: &str| model.weights.numbers(&format!("layers.1.mixer.{name}.weight")).unwrap();
    assert!(["q", "k", "v"].map(part).concat() == fused);
}

#[test]
fn a_fused_projection_of_uneven_rows_is_refused() {
    let folder = committed("nomic_bert");
    for (rows, words) in [(145, "of 3 equal parts cannot be read"), (147, "the model needs [48, 48]")] {
        let copy = Copy::of(&folder);
        let mut tensors = tensors(&open(&folder));
        for (tensor, bytes) in tensors.iter_mut().filter(|(tensor, _)| tensor.name.contains("Wqkv")) {
            tensor.shape = Shape::new(&[rows, 48]).unwrap();
            bytes.resize(rows * 48 * 2, 0);
        }
        write_weights(&copy, &tensors);
        let key = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Pooled };
        let error = copy.open().and_then(|model| model.graph(key, DType::F32)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Writes a model as a GGUF with llama.cpp's names and keys, and these further ones.
fn write_gguf(model: &ModelFiles, path: &Path, further: &[(&str, MetadataValue)]) {
    let (arch, facts) = (model.arch(), &model.facts);
    let name = &arch.matches.gguf[0];
    let Mixer::Attend(attend) = &facts.layers[0].mixer else { panic!("it attends") };
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", MetadataValue::String(name.clone())).unwrap();
    for (key, size) in [
        ("embedding_length", facts.sizes.width),
        ("block_count", facts.layers.len()),
        ("attention.head_count", attend.heads),
        ("feed_forward_length", facts.layers[0].ffn.size().unwrap()),
        ("context_length", facts.sizes.context),
    ] {
        metadata.insert(format!("{name}.{key}"), MetadataValue::U32(size as u32)).unwrap();
    }
    let epsilon = facts.layers[0].norms.norm.epsilon;
    metadata.insert(format!("{name}.attention.layer_norm_epsilon"), MetadataValue::F32(epsilon)).unwrap();
    if let Some(rope) = &attend.rope {
        metadata.insert(format!("{name}.rope.freq_base"), MetadataValue::F32(rope.base)).unwrap();
    }
    for (key, value) in further {
        metadata.insert(format!("{name}.{key}"), value.clone()).unwrap();
    }
    let mut names = BTreeMap::new();
    for weight in arch.weights.values() {
        for layer in 0..facts.layers.len() {
            let of_layer = |name: &Option<String>| name.as_ref().unwrap().replace("{i}", &layer.to_string());
            names.insert(of_layer(&weight.hf), of_layer(&weight.gguf));
        }
    }
    let renamed = tensors(model).into_iter().filter_map(|(tensor, bytes)| {
        Some((NewTensor { name: names.get(&tensor.name)?.clone(), ..tensor }, bytes))
    });
    let renamed: Vec<Tensor> = renamed.collect();
    let news: Vec<NewTensor> = renamed.iter().map(|(tensor, _)| tensor.clone()).collect();
    write_all(ContainerWriter::gguf(path, &metadata, &news).unwrap(), &renamed);
}

#[test]
fn a_gguf_gives_the_same_facts_and_weights() {
    for name in NAMES {
        let folder = committed(name);
        let (model, copy) = (open(&folder), Copy::of(&folder));
        let path = copy.path().join("model.gguf");
        let further =
            [("attention.causal", MetadataValue::Bool(false)), ("pooling_type", MetadataValue::U32(1))];
        for further in [&[][..], &further] {
            write_gguf(&model, &path, further);
            check_equal(&model, &open(&path));
            std::fs::remove_file(&path).unwrap();
        }
        for (kind, how) in [(0, None), (2, Some(Pooling::First)), (3, Some(Pooling::Last))] {
            write_gguf(&model, &path, &[("pooling_type", MetadataValue::U32(kind))]);
            assert_eq!(open(&path).facts.pooling.map(|pooling| pooling.how), how);
            std::fs::remove_file(&path).unwrap();
        }
        for (key, value) in
            [("pooling_type", MetadataValue::U32(4)), ("attention.causal", MetadataValue::Bool(true))]
        {
            write_gguf(&model, &path, &[(key, value)]);
            let error = ModelFiles::open(&path, Vec::new(), &ModelLimits::DEFAULT).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
