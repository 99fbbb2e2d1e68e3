//! Rare facts, converted to keys of GGUF and back.

use std::path::PathBuf;

use girih_file::{ContainerWriter, MetadataArray, MetadataValue, NewTensor};
use girih_model::arch::ArchOptions;
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::{DType, Shape};
use serde_json::{Value, json};

use super::{SMALL, check_copy, committed, open, options, write};
use crate::folder::empty_folder;
use crate::layered;

/// A copy of a committed model's folder with other values in `config.json`.
pub fn configured(folder: &str, name: &str, values: &Value) -> PathBuf {
    let folder = empty_folder(folder);
    std::fs::copy(committed(name).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let text = std::fs::read(committed(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    for (key, value) in values.as_object().unwrap() {
        config[key] = value.clone();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn rare_facts_survive() {
    let every_third = json!({ "sliding_window_pattern": 3 });
    let caps = json!({ "final_logit_softcapping": 30.0 });
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 4.0 } });
    for (index, (name, values)) in [
        ("gemma3_text", &every_third),
        ("gemma3_text", &json!({ "sliding_window_pattern": 99 })),
        ("gemma3_text", &caps),
        ("gemma3_text", &json!({ "query_pre_attn_scalar": 50.5 })),
        ("gemma3_text", &linear),
        (SMALL, &linear),
        (SMALL, &json!({ "rope_scaling": null })),
        (SMALL, &json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5 } })),
        ("qwen3", &linear),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = configured(&format!("convert-rare-{index}"), name, values);
        let (model, out) = (open(&folder), folder.join("out.gguf"));
        assert_ne!(model.facts, open(&committed(name)).facts, "{values} changes nothing");
        write(&model, &out, &options("bf16")).unwrap();
        check_copy(&model, &open(&out));
    }
}

#[test]
fn an_ignored_key_is_a_warning() {
    let folder = configured("convert-ignored", SMALL, &json!({ "logit_scale": 0.5 }));
    let options_of_model =
        ArchOptions { allow_keys: vec!["logit_scale".to_owned()], ..ArchOptions::default() };
    let model = ModelFiles::open(&folder, options_of_model, &ModelLimits::DEFAULT).unwrap();
    let report = write(&model, &folder.join("out.gguf"), &options("bf16")).unwrap();
    assert!(report.warnings.contains(&"the file lacks the ignored keys 'logit_scale'".to_owned()));
}

#[test]
fn facts_without_a_key_are_refused_by_name() {
    let kinds = ["full_attention", "sliding_attention"];
    let kinds: Vec<&str> = [0, 0, 1, 1, 0, 1, 1].map(|kind| kinds[kind]).into();
    let scaled = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0 });
    for (index, (name, values, words)) in [
        ("gemma3_text", json!({ "layer_types": kinds }), "the kinds of its layers"),
        ("gemma3_text", json!({ "rope_parameters": { "sliding_attention": scaled } }), "(local layers)"),
        ("qwen3", json!({ "hidden_act": "gelu_pytorch_tanh" }), "ffn.act"),
        (
            "qwen3",
            json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 } }),
            "the scaling of its rotary frequencies",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = configured(&format!("convert-keyless-{index}"), name, &values);
        let out = folder.join("out.gguf");
        let error = write(&open(&folder), &out, &options("f32")).unwrap_err().to_string();
        assert!(error.contains("has no GGUF key for") && error.contains(words), "{error}");
    }
}

/// The small model with biases of attention; GGUF interleaves those of queries and keys like their
/// rows.
fn biased() -> ModelFiles {
    let folder = configured("convert-biased", SMALL, &json!({ "attention_bias": true }));
    let model = open(&committed(SMALL));
    let container = model.weights.container();
    let mut tensors: Vec<(NewTensor, Vec<u8>)> = Vec::new();
    for (name, info) in container.tensors() {
        let mut bytes = vec![0; info.bytes as usize];
        container.read(info, 0, &mut bytes).unwrap();
        tensors.push((NewTensor { name: name.clone(), dtype: info.dtype, shape: info.shape }, bytes));
    }
    let layers = model.facts.layers.len();
    let parts = [("q", 64), ("k", 32), ("v", 32), ("o", 64)];
    for (layer, (part, rows)) in (0..layers).flat_map(|layer| parts.map(|part| (layer, part))) {
        let name = format!("model.layers.{layer}.self_attn.{part}_proj.bias");
        let bytes = (0..rows).flat_map(|row| (row as f32).to_le_bytes()).collect();
        tensors.push((NewTensor { name, dtype: DType::F32, shape: Shape::vector(rows) }, bytes));
    }
    let path = folder.join("model.safetensors");
    std::fs::remove_file(&path).unwrap();
    let news: Vec<NewTensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    let mut writer = ContainerWriter::safetensors(&path, &Default::default(), &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (_, bytes) = tensors.iter().find(|(tensor, _)| tensor.name == name).unwrap();
        writer.append(&name, bytes).unwrap();
    }
    writer.finish().unwrap();
    open(&folder)
}

#[test]
fn biases_are_interleaved_like_their_rows() {
    let model = biased();
    let folder = empty_folder("convert-biases");
    let (out, again) = (folder.join("out.gguf"), folder.join("again.gguf"));
    write(&model, &out, &options("q8_0")).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let container = copy.weights.container();
    let info = container.tensor("blk.0.attn_k.bias").unwrap();
    let mut bytes = vec![0; info.bytes as usize];
    container.read(info, 0, &mut bytes).unwrap();
    let stored: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(stored[..6], [0.0, 8.0, 1.0, 9.0, 2.0, 10.0], "heads of 16, halves interleaved");
    write(&copy, &again, &options("q8_0")).unwrap();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&again).unwrap());
}

#[test]
fn encoders_are_refused_before_anything_is_written() {
    for name in ["bert", "nomic_bert"] {
        let model = open(&committed(name));
        for (target, out) in [("f32", "out.gguf"), ("q4nx", "out")] {
            let out = empty_folder(&format!("convert-{name}-{target}")).join(out);
            let error = write(&model, &out, &options(target)).unwrap_err().to_string();
            assert!(error.contains(&format!("architecture {name} are encoders")), "{error}");
            assert!(!out.exists());
        }
    }
}

/// A weight that is described as a part of a tensor whose other parts the model lacks.
#[test]
fn parts_of_tensors_are_refused() {
    let text = "name = 'part'\nbased_on = 'llama'\n\
        match = { hf = ['LlamaForCausalLM'], gguf = ['llama'] }\n\
        weights.'layers.{i}.mixer.o.weight' = { hf_part = [0, 1], gguf_part = [0, 2] }";
    let arch = girih_model::arch::schema::parse(text).unwrap();
    let model = ModelFiles::open(&committed(SMALL), vec![arch], &ModelLimits::DEFAULT).unwrap();
    let of_gguf = "'blk.0.attn_output.weight' of the file has other rows than those of the model's weights";
    let of_folder = "'layers.0.mixer.o.weight' is a part of a tensor";
    for (target, out, words) in [("f32", "out.gguf", of_gguf), ("q4nx", "out", of_folder)] {
        let out = empty_folder(&format!("convert-part-{target}")).join(out);
        let error = write(&model, &out, &options(target)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!out.exists());
    }
}

/// Layers that differ: lists of sizes, and parameters of one kind of layers.
#[test]
fn layers_that_differ_survive_a_conversion() {
    let folder = empty_folder("convert-layered");
    layered::write(&folder);
    let open = |path: &std::path::Path| {
        ModelFiles::open(path, vec![layered::architecture()], &ModelLimits::DEFAULT).unwrap()
    };
    let (model, out) = (open(&folder), folder.join("out.gguf"));
    write(&model, &out, &options("f32")).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let heads = copy.weights.container().metadata().value("layered.attention.head_count");
    assert_eq!(heads, Some(&MetadataValue::Array(MetadataArray::U32(vec![4, 2, 2, 3]))));
}

/// Layers whose kinds a GGUF tells by the 0 in a list, as llama.cpp does for layers without attention.
#[test]
fn kinds_of_layers_survive_as_zeros_of_a_list() {
    let text = "name = 'kinds'\nbased_on = 'llama'\n\
        match = { hf = ['LlamaForCausalLM'], gguf = ['llama'] }\n\
        [layers]\nkinds = ['near', 'far']\n\
        listed = { hf = 'layer_types', words = { a = 'near', b = 'far' } }\n\
        gguf_listed = { gguf = 'llama.far_kv_heads', zero = 'near', other = 'far' }\n\
        [layer.near]\n\
        [layer.far.mixer]\nspan.window.default = 5\n\
        kv_heads = { gguf = 'llama.far_kv_heads', by_layer = true }";
    let folder = configured("convert-kinds", SMALL, &json!({ "layer_types": ["a", "b", "b"] }));
    let open = |path: &std::path::Path| {
        let arch = girih_model::arch::schema::parse(text).unwrap();
        ModelFiles::open(path, vec![arch], &ModelLimits::DEFAULT).unwrap()
    };
    let (model, out) = (open(&folder), folder.join("out.gguf"));
    write(&model, &out, &options("bf16")).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let kinds: Vec<&str> = copy.facts.layers.iter().map(|layer| layer.kind.as_str()).collect();
    assert_eq!(kinds, ["near", "far", "far"]);
    let heads = copy.weights.container().metadata().value("llama.far_kv_heads");
    assert_eq!(heads, Some(&MetadataValue::Array(MetadataArray::U32(vec![0, 2, 2]))));
}
