//! Architectures that differ from those of the other tests in their description only: from
//! safetensors and from llama.cpp's conversion, the interpreter computes the logits of transformers.

use girih_file::{Container, ContainerKind, Metadata, MetadataArray, MetadataValue};
use girih_file::{ContainerWriter, NewTensor};
use girih_graph::{Key, OutputKind, Span};
use girih_model::arch::{ArchOptions, AttentionFacts, Mixer};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::{DType, Shape};
use serde_json::{Value as Json, json};

use crate::encoders::{Copy, Tensor, check_equal, tensors, write_weights};
use crate::light::{agrees_with_golden, committed, open};

/// Those that llama.cpp converts without a loss.
const BOTH: [&str; 12] = [
    "qwen2",
    "mistral_small",
    "mistral3",
    "gemma",
    "gemma2",
    "gemma3_vision",
    "idefics3",
    "ernie4_5",
    "seed_oss",
    "exaone4",
    "lfm2",
    "gemma4",
];

/// Those that llama.cpp does not convert, or of which it loses windows or limits.
const SAFETENSORS: [&str; 6] = ["mistral", "ministral", "helium", "gpt_oss", "laguna", "cohere2_moe"];

/// llama.cpp's conversion of a fixture.
fn converted(name: &str) -> std::path::PathBuf {
    committed("gguf").join(format!("{name}.gguf"))
}

fn attend(model: &ModelFiles, layer: usize) -> &AttentionFacts {
    let Mixer::Attend(attend) = &model.facts.layers[layer].mixer else { panic!("it attends") };
    attend
}

#[test]
fn each_family_gives_the_logits_of_transformers() {
    for name in BOTH.iter().chain(&SAFETENSORS) {
        let folder = committed(name);
        agrees_with_golden(&folder, &open(&folder));
    }
}

#[test]
fn each_family_has_the_same_facts_in_both_styles_of_configuration() {
    for name in BOTH.iter().chain(&SAFETENSORS) {
        let folder = committed(name);
        let copy = Copy::of(&folder);
        std::fs::copy(folder.join("config.v5.json"), copy.path().join("config.json")).unwrap();
        let model = copy.open().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.facts, open(&folder).facts, "{name}");
    }
}

#[test]
fn each_conversion_of_llama_cpp_gives_the_logits_of_transformers() {
    for name in BOTH {
        let (folder, model) = (committed(name), open(&converted(name)));
        agrees_with_golden(&folder, &model);
        // The name in GGUF may be that of a family that includes the model.
        let mut facts = open(&folder).facts;
        facts.name = model.facts.name.clone();
        assert_eq!(model.facts, facts, "{name}");
    }
}

/// The largest Gemma 2 and Gemma 3 scale their scores by the width of a head's share, which
/// llama.cpp tells by the number of layers. The fixtures have these numbers of layers.
#[test]
fn the_scale_of_the_largest_gemma_is_that_of_llama_cpp() {
    for (name, layers) in [("gemma2_27b", 46), ("gemma3_27b", 62)] {
        let model = open(&converted(name));
        assert_eq!((model.facts.layers.len(), attend(&model, 0).head_size), (layers, 4));
        assert_eq!(attend(&model, 0).scale, 0.25, "1/√16, the width of 16 with one head");
        agrees_with_golden(&committed(name), &model);
    }
}

/// A copy of a GGUF with one further key.
fn with_key(copy: &Copy, source: &ModelFiles, key: &str, value: MetadataValue) -> std::path::PathBuf {
    with_keys(copy, source, &[(key, value)], None)
}

/// A copy of a GGUF with further keys, and a further name for a tensor.
fn with_keys(
    copy: &Copy,
    source: &ModelFiles,
    keys: &[(&str, MetadataValue)],
    twice: Option<(&str, &str)>,
) -> std::path::PathBuf {
    let old = source.weights.container().metadata();
    let mut metadata = Metadata::new();
    for (name, old) in old.iter().filter(|(name, _)| keys.iter().all(|(key, _)| key != name)) {
        metadata.insert(name, old.clone()).unwrap();
    }
    for (key, value) in keys {
        metadata.insert(*key, value.clone()).unwrap();
    }
    let mut all = tensors(source);
    if let Some((name, other)) = twice {
        let (tensor, bytes) = all.iter().find(|(tensor, _)| tensor.name == name).unwrap().clone();
        all.push((NewTensor { name: other.to_owned(), ..tensor }, bytes));
    }
    let news: Vec<NewTensor> = all.iter().map(|(tensor, _)| tensor.clone()).collect();
    let path = copy.path().join("changed.gguf");
    let mut writer = ContainerWriter::gguf(&path, &metadata, &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (_, bytes) = all.iter().find(|(tensor, _)| tensor.name == name).unwrap();
        writer.append(&name, bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn a_scale_that_a_gguf_states_counts_before_that_of_llama_cpp() {
    let source = open(&converted("gemma3_27b"));
    let copy = Copy::of(&committed("gemma2"));
    let key = "gemma3.attention.query_pre_attn_scalar";
    let path = with_key(&copy, &source, key, MetadataValue::F32(4.0));
    assert_eq!(attend(&open(&path), 0).scale, 0.5);
}

#[test]
fn an_exaone_file_of_64_layers_has_windows_and_is_refused() {
    let source = open(&converted("exaone4"));
    let copy = Copy::of(&committed("exaone4"));
    let path = with_key(&copy, &source, "exaone4.block_count", MetadataValue::U32(64));
    let error =
        ModelFiles::open(&path, ArchOptions::default(), &ModelLimits::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("for 64 layers llama.cpp takes EXAONE 4 with sliding windows"), "{error}");
}

#[test]
fn a_llama_file_with_a_window_is_a_mistral() {
    let source = open(&converted("mistral_small"));
    assert_eq!(source.facts.name, "llama");
    let copy = Copy::of(&committed("mistral_small"));
    let key = "llama.attention.sliding_window";
    let path = with_key(&copy, &source, key, MetadataValue::U32(8));
    let model = open(&path);
    assert_eq!((model.facts.name.as_str(), attend(&model, 1).span), ("mistral", Span::Window(8)));
}

#[test]
fn a_setting_that_would_change_a_family_is_refused_by_name() {
    let text = |key: &str, value: Json| {
        let text = std::fs::read(committed("mistral3").join("config.json")).unwrap();
        let mut config: Json = serde_json::from_slice(&text).unwrap();
        config["text_config"][key] = value;
        json!({ "text_config": config["text_config"] })
    };
    for (name, values, words) in [
        ("qwen2", json!({ "use_sliding_window": true }), "'use_sliding_window'"),
        ("qwen2", json!({ "layer_types": ["full_attention", "sliding_attention"] }), "sliding_attention"),
        ("mistral", json!({ "layer_types": ["full_attention", "sliding_attention"] }), "'layer_types'"),
        ("mistral3", text("sliding_window", json!(8)), "'text_config.sliding_window'"),
        ("mistral3", text("model_type", json!("mistral5")), "'text_config.model_type'"),
        ("mistral3", text("model_type", json!("ministral3")), "states no rotary scaling"),
        ("exaone4", json!({ "sliding_window": 8, "layer_types": null }), "has no 'layer_types'"),
        ("gpt_oss", json!({ "rope_scaling": null, "rope_parameters": null }), "states no rotary scaling"),
        ("gemma", json!({ "attention_bias": true }), "'attention_bias'"),
        ("gemma", json!({ "hidden_activation": "gelu" }), "'hidden_activation'"),
        ("helium", json!({ "attention_bias": true }), "attention_bias"),
        ("ernie4_5", json!({ "use_bias": true }), "use_bias"),
        ("seed_oss", json!({ "attention_out_bias": true }), "attention_out_bias"),
        ("lfm2", json!({ "conv_bias": true }), "short convolutions with biases"),
        ("lfm2", json!({ "conv_L_cache": 1 }), "'conv_L_cache' is 1; a number from 2 to 64"),
        ("lfm2", json!({ "full_attn_idxs": [1, 5] }), "a list of indexes below 5 is needed"),
        ("lfm2", json!({ "full_attn_idxs": [1, 2] }), "architecture lfm2 needs tensors that the file lacks"),
        ("lfm2", json!({ "full_attn_idxs": [1] }), "architecture lfm2 needs tensors that the file lacks"),
        ("lfm2", json!({ "layer_types": ["conv", "full_attention"] }), "lists 2 layers; the model has 5"),
        ("lfm2", json!({ "block_ffn_dim_multiplier": 1e30 }), "makes an inner size of"),
    ] {
        let copy = Copy::of(&committed(name));
        copy.set(&values);
        let error = copy.error();
        assert!(error.contains(words), "{name} {values}: {error}");
    }
}

/// Sizes are compared with those of the weights when a graph is built.
#[test]
fn sizes_of_lfm2_that_its_weights_contradict_are_refused() {
    let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
    for (values, words) in [
        (
            json!({ "conv_L_cache": 4 }),
            "'layers.0.mixer.taps' has the shape [3, 32]; the model needs [4, 32]",
        ),
        (json!({ "block_auto_adjust_ff_dim": false }), "the model needs [128, 32]"),
        (json!({ "block_ffn_dim_multiplier": 1.2 }), "the model needs [128, 32]"),
        (json!({ "block_multiple_of": 2147483647 }), "the model needs [2147483647, 32]"),
    ] {
        let copy = Copy::of(&committed("lfm2"));
        copy.set(&values);
        let error = copy.open().unwrap().graph(key, DType::F16).unwrap_err().to_string();
        assert!(error.contains(words), "{values}: {error}");
    }
}

#[test]
fn a_gguf_lists_the_layers_that_attend_by_their_kv_heads() {
    let source = open(&converted("lfm2"));
    let copy = Copy::of(&committed("lfm2"));
    let with = |list: &[u32]| {
        let list = MetadataValue::Array(MetadataArray::U32(list.to_vec()));
        let _ = std::fs::remove_file(copy.path().join("changed.gguf")); // that of the case before
        let path = with_key(&copy, &source, "lfm2.attention.head_count_kv", list);
        ModelFiles::open(&path, ArchOptions::default(), &ModelLimits::DEFAULT)
    };
    assert_eq!(with(&[0, 2, 0, 0, 2]).unwrap().facts, source.facts);
    for (list, words) in [
        (&[0, 2, 0, 0][..], "is a list of length 4; 5 sizes from 0 to 2147483647 are needed"),
        (&[0, 2, 0, 0, 3], "4 query heads cannot share 3 KV heads"),
        (&[0; 5], "architecture lfm2 needs tensors that the file lacks"),
        (&[0, u32::MAX, 0, 0, u32::MAX], "5 sizes from 0 to 2147483647 are needed"),
        (&[0, 2, 0, 2, 2], "architecture lfm2 needs tensors that the file lacks"),
    ] {
        let error = with(list).unwrap_err().to_string();
        assert!(error.contains(words), "{list:?}: {error}");
    }
    // No other architecture has a list.
    let source = open(&converted("qwen2"));
    let copy = Copy::of(&committed("qwen2"));
    let list = MetadataValue::Array(MetadataArray::U32(vec![2, 0]));
    let path = with_key(&copy, &source, "qwen2.attention.head_count_kv", list);
    assert!(ModelFiles::open(&path, ArchOptions::default(), &ModelLimits::DEFAULT).is_err());
}

/// llama.cpp's converter counts a layer that drafts tokens among the layers, and lists it among their kinds.
#[test]
fn layers_of_a_gguf_that_draft_tokens_are_left_out() {
    let source = open(&converted("qwen3_5"));
    let copy = Copy::of(&committed("qwen3_5"));
    let with = |blocks: u32, tensor: &str| {
        let _ = std::fs::remove_file(copy.path().join("changed.gguf")); // that of the case before
        let recurrent = [true, true, true, false, false];
        let keys = [
            ("qwen35.block_count", MetadataValue::U32(blocks)),
            ("qwen35.nextn_predict_layers", MetadataValue::U32(1)),
            (
                "qwen35.attention.recurrent_layers",
                MetadataValue::Array(MetadataArray::Bool(recurrent.to_vec())),
            ),
        ];
        let path = with_keys(&copy, &source, &keys, Some(("output_norm.weight", tensor)));
        ModelFiles::open(&path, ArchOptions::default(), &ModelLimits::DEFAULT)
    };
    assert_eq!(with(5, "blk.4.nextn.hnorm.weight").unwrap().facts, source.facts);
    for (blocks, tensor, words) in [
        (4, "blk.4.nextn.hnorm.weight", "is a list of length 5; 3 sizes"),
        (
            5,
            "blk.5.nextn.hnorm.weight",
            "does not describe these tensors of the file: 'blk.5.nextn.hnorm.weight'",
        ),
        (
            1,
            "blk.4.nextn.hnorm.weight",
            "is 1, and 1 of these layers draft tokens; at least one other is needed",
        ),
    ] {
        let error = with(blocks, tensor).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Layers with full attention are rotated only in a model without windows, and transformers' default is one.
#[test]
fn a_window_that_transformers_would_add_counts() {
    let copy = Copy::of(&committed("exaone4"));
    let rotated = |copy: &Copy| {
        let facts = copy.open().unwrap().facts;
        facts.layers.iter().filter(|layer| layer.mixer.attention().unwrap().rope.is_some()).count()
    };
    assert_eq!(rotated(&copy), open(&committed("exaone4")).facts.layers.len());
    let text = std::fs::read_to_string(copy.path().join("config.json")).unwrap();
    let without = text.replace("  \"sliding_window\": null,\n", "");
    assert_ne!(text, without);
    std::fs::write(copy.path().join("config.json"), without).unwrap();
    assert_eq!(rotated(&copy), 0);
}

/// transformers 5 has other names for the weights of a model that also reads images.
#[test]
fn the_text_part_is_found_under_each_of_its_names() {
    for name in ["gemma3_vision", "mistral3"] {
        let (model, copy) = (open(&committed(name)), Copy::of(&committed(name)));
        let rename = |name: &str| match name.strip_prefix("language_model.") {
            Some(head) if head.starts_with("lm_head.") => head.to_owned(),
            Some(rest) => rest.replacen("model.", "model.language_model.", 1),
            None => format!("model.{name}"),
        };
        let renamed = tensors(&model).into_iter().map(|(tensor, bytes)| {
            let name = rename(&tensor.name);
            (NewTensor { name, ..tensor }, bytes)
        });
        write_weights(&copy, &renamed.collect::<Vec<_>>());
        check_equal(&model, &copy.open().unwrap());
    }
}

/// The text of a safetensors file of these tensors, one of them with another type and shape.
fn safetensors(all: &[Tensor], changed: &str, dtype: &str, shape: &[usize], size: usize) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (tensor, bytes) in all {
        let zeros = vec![0; size];
        let is_changed = tensor.name == changed;
        let start = data.len();
        data.extend_from_slice(if is_changed { &zeros } else { bytes });
        let own = if tensor.dtype == DType::BF16 { "BF16" } else { "F32" };
        let entry = json!({
            "dtype": if is_changed { dtype } else { own },
            "shape": if is_changed { shape } else { tensor.shape.extents() },
            "data_offsets": [start, data.len()],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let header = Json::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

const PATCHES: &str = "vision_tower.vision_model.embeddings.patch_embedding.weight";
const NORM: &str = "language_model.model.norm.weight";

#[test]
fn a_tensor_is_judged_when_it_is_used() {
    let model = open(&committed("gemma3_vision"));
    let copy = Copy::of(&committed("gemma3_vision"));
    let path = copy.path().join("model.safetensors");
    for (dtype, shape, size, words) in [
        ("BF16", &[8, 3, 1, 1, 7, 7][..], 8 * 3 * 7 * 7 * 2, "has 6 dimensions; 1 to 5 are supported"),
        ("F64", &[32], 32 * 8, "stored as 'F64', which girih does not read"),
        ("BOOL", &[32], 32, "stored as 'BOOL', which girih does not read"),
        ("F8_E4M3", &[32], 32, "stored as 'F8_E4M3', which girih does not read"),
        ("F4", &[64], 32, "stored as 'F4', which girih does not read"),
        ("I8", &[32], 32, "is stored as i8 without scales"),
    ] {
        std::fs::write(&path, safetensors(&tensors(&model), PATCHES, dtype, shape, size)).unwrap();
        let opened = copy.open().unwrap_or_else(|error| panic!("{dtype} {shape:?}: {error}"));
        assert_eq!(opened.facts, model.facts);
        std::fs::write(&path, safetensors(&tensors(&model), NORM, dtype, shape, size)).unwrap();
        let error = copy.error();
        assert!(error.contains(NORM) && error.contains(words), "{dtype} {shape:?}: {error}");
    }
}

#[test]
fn a_matrix_of_raw_integers_is_refused_by_name() {
    let model = open(&committed("qwen2"));
    let copy = Copy::of(&committed("qwen2"));
    let name = "model.layers.1.mlp.up_proj.weight";
    let bytes = safetensors(&tensors(&model), name, "I8", &[48, 32], 48 * 32);
    std::fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    let error = copy.error();
    assert!(error.contains(name) && error.contains("i8 without scales"), "{error}");
}

#[test]
fn a_tensor_that_no_list_has_is_refused_even_if_it_cannot_be_read() {
    let model = open(&committed("qwen2"));
    let copy = Copy::of(&committed("qwen2"));
    let mut all = tensors(&model);
    all.push((
        NewTensor { name: "visual".to_owned(), dtype: DType::F32, shape: Shape::vector(1) },
        vec![0; 4],
    ));
    let bytes = safetensors(&all, "visual", "BF16", &[1, 1, 1, 1, 1, 2], 4);
    std::fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    assert!(
        copy.error().contains("does not describe these tensors of the file: 'visual'"),
        "{}",
        copy.error()
    );
    let limits = &ModelLimits::DEFAULT.file;
    let container = Container::open(&copy.path().join("model.safetensors"), limits).unwrap();
    assert_eq!(container.kind(), ContainerKind::Safetensors);
    assert!(container.tensor("visual").unwrap_err().to_string().contains("has 6 dimensions"));
}
