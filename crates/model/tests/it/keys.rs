//! Every key of a model is read, harmless by value, or refused by name; `docs/keys.md` lists them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use girih_file::{ContainerWriter, Metadata, MetadataArray, MetadataValue, NewTensor};
use girih_graph::Span;
use girih_model::arch::schema::{
    DefaultValue, ExcludedKey, HarmlessKey, HarmlessValues, ListOf, StatedValue,
};
use girih_model::arch::{
    self, Arch, ArchOptions, ArchParameter, GGUF_SCALING, Mixer, PROJECTOR_TYPES, shared_keys,
};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::{DType, Shape};
use serde_json::{Value as Json, json};

use crate::folder::empty_folder;
use crate::light::{committed, open};

/// The value of a patch that removes a key.
const REMOVED: &str = "(removed)";

/// The configuration of a fixture with these keys set.
fn configured(fixture: &str, patch: &Json) -> Json {
    let text = std::fs::read(committed(fixture).join("config.json")).unwrap();
    let mut config: Json = serde_json::from_slice(&text).unwrap();
    let object = config.as_object_mut().unwrap();
    for (key, value) in patch.as_object().unwrap() {
        if value == REMOVED {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    config
}

/// A folder with the weights of a fixture and this configuration.
fn folder(label: &str, fixture: &str, config: &Json) -> PathBuf {
    let folder = empty_folder(&format!("keys-{label}"));
    std::fs::copy(committed(fixture).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

fn open_allowing(path: &Path, allow: &[&str]) -> Result<ModelFiles, String> {
    let allow_keys = allow.iter().map(|key| (*key).to_owned()).collect();
    let options = ArchOptions { allow_keys, ..ArchOptions::default() };
    ModelFiles::open(path, options, &ModelLimits::DEFAULT).map_err(|error| error.to_string())
}

/// Opens a fixture with these keys set.
fn patched(label: &str, fixture: &str, patch: &Json) -> Result<ModelFiles, String> {
    open_allowing(&folder(label, fixture, &configured(fixture, patch)), &[])
}

#[test]
fn a_key_that_nobody_reads_is_refused_by_name() {
    let error = patched("one", "llama32_tied", &json!({ "residual_multiplier": 0.22 })).unwrap_err();
    assert_eq!(
        error,
        "config.json sets 'residual_multiplier' to 0.22, which architecture llama does not read; it may change \
         the model: pass --allow-key residual_multiplier to ignore it"
    );
    let many = json!({ "a": 1, "b": [1, 2], "c": { "d": 1 }, "e": "x".repeat(9999), "f": true, "g": 1.5 });
    let error = patched("many", "llama32_tied", &many).unwrap_err();
    assert!(error.contains("'a' to 1, 'b' to a list of length 2, 'c' to an object, 'e' to 'xxx"), "{error}");
    assert!(error.contains("and 1 more, which") && error.len() < 400, "{error}");
    let strange = json!({ "\u{1b}[2J": 1 });
    let error = patched("strange", "llama32_tied", &strange).unwrap_err();
    assert!(error.contains("'\\u{1b}[2J'") && !error.contains('\u{1b}'), "{error}");
}

/// A fixture, keys that are set in it, and a part of the expected error.
type Refused<'a> = (&'a str, Json, &'a str);

fn check_refused(label: &str, refused: &[Refused<'_>]) {
    for (index, (fixture, patch, words)) in refused.iter().enumerate() {
        match patched(&format!("{label}-{index}"), fixture, patch) {
            Ok(_) => panic!("{fixture} opens with {patch}"),
            Err(error) => assert!(error.contains(words), "{fixture}, {patch}: {error}"),
        }
    }
}

#[test]
fn keys_that_make_another_model_are_refused() {
    let mut refused: Vec<Refused<'_>> = Vec::new();
    let anywhere = [
        ("partial_rotary_factor", json!(0.5)),
        ("logit_scale", json!(0.0625)),
        ("logits_scaling", json!(8.0)),
        ("residual_multiplier", json!(0.22)),
        ("embedding_multiplier", json!(12.0)),
        ("attention_multiplier", json!(0.015625)),
        ("no_rope_layers", json!([1, 1, 1, 0])),
        ("no_rope_layer_interval", json!(4)),
        ("use_qk_norm", json!(true)),
        ("clip_qkv", json!(8.0)),
        ("num_local_experts", json!(8)),
        ("rope_interleaved", json!(true)),
        ("layer_types", json!(["strange"])),
        ("pretraining_tp", json!(2)),
        ("repetition_penalty", json!(1.5)),
        ("is_decoder", json!("no")),
        ("per_layer_config", json!({ "0": { "num_attention_heads": 2 } })),
        ("text_config", json!({ "hidden_size": 64 })),
        ("vision_config", json!({ "hidden_size": 64 })),
        ("quantization_config", json!({ "quant_method": "fp8" })),
        ("auxiliary", json!(false)),
    ];
    for fixture in ["llama32_tied", "llama_biased", "qwen3", "gemma3_text", "bert", "nomic_bert"] {
        let keys = anywhere.iter().filter(|(key, _)| (fixture, *key) != ("nomic_bert", "layer_types"));
        refused.extend(keys.map(|(key, value)| (fixture, json!({ *key: value }), *key)));
    }
    let windowed = ["llama32_tied", "bert"].into_iter().flat_map(|fixture| {
        [("sliding_window", json!(16)), ("use_sliding_window", json!(true)), ("max_window_layers", json!(1))]
            .map(|(key, value)| (fixture, json!({ key: value }), key))
    });
    refused.extend(windowed);
    refused.extend([
        ("qwen3", json!({ "use_sliding_window": true, "sliding_window": 16 }), "use_sliding_window"),
        (
            "qwen3",
            json!({ "layer_types": ["full_attention", "sliding_attention", "full_attention"] }),
            "layer_types",
        ),
        ("qwen3", json!({ "layer_types": ["full_attention"] }), "lists 1 layers"),
        ("qwen3", json!({ "layer_types": "full_attention" }), "a list is needed"),
        ("gemma3_text", json!({ "hidden_act": "silu" }), "hidden_act"),
        ("gemma3_text", json!({ "layer_types": 5 }), "a list is needed"),
        ("gemma3_text", json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping"),
        ("gemma3_text", json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }), "rope_scaling.type"),
        ("gemma3_text", json!({ "use_bidirectional_attention": true }), "use_bidirectional_attention"),
    ]);
    check_refused("another", &refused);
}

#[test]
fn values_that_contradict_the_weights_are_refused() {
    check_refused(
        "weights",
        &[
            (
                "llama32_tied",
                json!({ "vocab_size": 500 }),
                "'vocab_size' is 500, but the embedding table has 512 rows",
            ),
            ("llama32_tied", json!({ "vocab_size": 513 }), "vocab_size"),
            ("llama32_tied", json!({ "vocab_size": REMOVED }), "vocab_size"),
            (
                "llama32_tied",
                json!({ "attention_bias": true }),
                "'attention_bias' is true, but 'mixer.q' of layer 0 has no bias",
            ),
            ("llama32_tied", json!({ "mlp_bias": true }), "mlp_bias"),
            ("llama32_tied", json!({ "mlp_bias": 0 }), "true or false is needed"),
            ("llama32_tied", json!({ "mlp_bias": null }), "true or false is needed"),
            (
                "llama_biased",
                json!({ "attention_bias": false }),
                "'attention_bias' is false, but 'mixer.q' of layer 0 has a bias",
            ),
            ("llama_biased", json!({ "mlp_bias": REMOVED }), "'mlp_bias' is false"),
            ("qwen3", json!({ "attention_bias": true }), "attention_bias"),
            ("llama32_tied", json!({ "num_hidden_layers": 2 }), "does not describe these tensors"),
            ("llama32_tied", json!({ "num_hidden_layers": 4 }), "needs tensors"),
            ("llama32_tied", json!({ "tie_word_embeddings": REMOVED }), "the head is not tied"),
            ("bert", json!({ "type_vocab_size": 3 }), "'type_vocab_size' is 3"),
            ("bert", json!({ "max_position_embeddings": 64 }), "max_position_embeddings"),
        ],
    );
}

#[test]
fn values_of_a_wrong_kind_are_refused() {
    check_refused(
        "kinds",
        &[
            (
                "llama32_tied",
                json!({ "model_type": "granite" }),
                "'model_type' is 'granite'; architecture llama needs llama",
            ),
            ("llama32_tied", json!({ "model_type": REMOVED }), "model_type"),
            ("llama32_tied", json!({ "architectures": ["LlamaForCausalLM", 5] }), "a list of strings"),
            ("llama32_tied", json!({ "num_hidden_layers": 3.0 }), "is 3.0; an integer"),
            ("llama32_tied", json!({ "hidden_act": null }), "is null"),
            ("llama32_tied", json!({ "rope_theta": null }), "is null"),
            ("llama32_tied", json!({ "tie_word_embeddings": null }), "is null"),
            ("llama32_tied", json!({ "rope_scaling": "linear" }), "an object is needed"),
            ("llama32_tied", json!({ "rope_scaling": [] }), "an object is needed"),
            ("llama32_tied", json!({ "rope_scaling": { "rope_type": 5 } }), "rope_type"),
            (
                "llama32_tied",
                json!({ "rope_scaling": { "rope_type": "linear", "type": "llama3", "factor": 2.0 } }),
                "or several",
            ),
            (
                "llama32_tied",
                json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0 } }),
                "rope_scaling.low_freq_factor",
            ),
            (
                "llama32_tied",
                json!({ "rope_scaling": { "rope_type": "default", "partial_rotary_factor": 0.5 } }),
                "partial_rotary_factor",
            ),
            (
                "llama32_tied",
                json!({ "rope_scaling": null, "rope_parameters.rope_theta": 5.0 }),
                "rope_parameters.rope_theta",
            ),
            ("llama32_tied", json!({ "rope_parameters": 5 }), "rope_parameters"),
            (
                "gemma3_text",
                json!({ "rope_parameters": { "rope_theta": 5e5 } }),
                "rope_parameters.rope_theta",
            ),
        ],
    );
}

#[test]
fn two_styles_of_a_key_must_agree() {
    let scaled = configured("llama32_tied", &json!({}))["rope_scaling"].clone();
    let mut both = scaled.clone();
    both["rope_theta"] = json!(500000);
    check_refused(
        "styles",
        &[
            (
                "qwen3",
                json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 } }),
                "equal values are needed",
            ),
            (
                "llama32_tied",
                json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.0 } }),
                "differently",
            ),
            (
                "gemma3_text",
                json!({ "rope_parameters": { "sliding_attention": { "rope_theta": 5e5 } } }),
                "equal values are needed",
            ),
        ],
    );
    for (index, patch) in [
        json!({ "rope_parameters": scaled }),
        json!({ "rope_scaling": null, "rope_parameters": both }),
        json!({ "rope_scaling": {}, "rope_parameters": both }),
    ]
    .iter()
    .enumerate()
    {
        let model = patched(&format!("agree-{index}"), "llama32_tied", patch).unwrap();
        assert_eq!(model.facts, open(&committed("llama32_tied")).facts, "{patch}");
    }
}

#[test]
fn keys_that_change_no_number_are_accepted() {
    let everywhere = json!({
        "_name_or_path": "a/b", "use_cache": false, "dtype": "float16", "attention_dropout": 0.5, "initializer_range": 0.1,
        "bos_token_id": 5, "eos_token_id": [1, 2], "pad_token_id": null, "transformers_version": "5.23.0",
        "pretraining_tp": 1, "partial_rotary_factor": 1, "is_encoder_decoder": false, "chunk_size_feed_forward": 0,
        "id2label": { "0": "LABEL_0" }, "sliding_window_size": null, "pruned_heads": {},
        "transformers.js_config": { "dtype": "q4" }, "temperature": 1.0, "max_length": 4096
    });
    let alone = [
        ("llama32_tied", json!({ "sliding_window": null, "layer_types": null, "head_dim": null })),
        ("llama_biased", json!({ "head_dim": 16 })),
        ("qwen3", json!({ "sliding_window": 16, "max_window_layers": 1 })),
        ("gemma3_text", json!({ "_sliding_window_pattern": 3, "hidden_act": "gelu_pytorch_tanh" })),
        ("bert", json!({ "add_cross_attention": false, "pooler_type": "first_token_transform" })),
        ("nomic_bert", json!({ "auto_map": { "AutoModel": "a--b.C" }, "use_flash_attn": true })),
    ];
    for (fixture, patch) in alone {
        for (label, patch) in [("everywhere", &everywhere), ("alone", &patch)] {
            let model = patched(&format!("{label}-{fixture}"), fixture, patch);
            let model = model.unwrap_or_else(|error| panic!("{fixture}, {patch}: {error}"));
            assert_eq!(model.facts, open(&committed(fixture)).facts, "{fixture}, {patch}");
        }
    }
}

#[test]
fn defaults_are_those_of_transformers() {
    let model = patched("scalar", "gemma3_text", &json!({ "query_pre_attn_scalar": REMOVED })).unwrap();
    let Mixer::Attend(attend) = &model.facts.layers[0].mixer else { panic!("it attends") };
    assert_eq!(attend.scale, 1.0 / 16.0, "transformers divides by the square root of 256");
    let model = patched("window", "gemma3_text", &json!({ "sliding_window": REMOVED })).unwrap();
    let Mixer::Attend(attend) = &model.facts.layers[0].mixer else { panic!("it attends") };
    assert_eq!(attend.span, Span::Window(4096));
}

#[test]
fn a_head_that_is_stored_and_differs_is_not_tied() {
    let model = patched("tied", "llama_biased", &json!({ "tie_word_embeddings": true })).unwrap();
    assert_eq!(model.facts, open(&committed("llama_biased")).facts);
    assert!(!model.facts.head.unwrap().tied);
}

#[test]
fn a_window_of_null_is_a_full_span() {
    let model = patched("null", "gemma3_text", &json!({ "sliding_window": null })).unwrap();
    for layer in &model.facts.layers {
        let Mixer::Attend(attend) = &layer.mixer else { panic!("it attends") };
        assert_eq!(attend.span, Span::Full);
    }
}

#[test]
fn an_allowed_key_may_have_dots() {
    let folder = folder("dots", "llama32_tied", &configured("llama32_tied", &json!({ "foo.bar": 1 })));
    assert!(open_allowing(&folder, &[]).unwrap_err().contains("pass --allow-key foo.bar"));
    open_allowing(&folder, &["foo.bar"]).unwrap();
}

#[test]
fn an_allowed_key_is_ignored_and_listed() {
    let patch = json!({ "logit_scale": 2.0, "quantization_config": { "quant_method": "fp8" } });
    let folder = folder("allowed", "llama32_tied", &configured("llama32_tied", &patch));
    let error = open_allowing(&folder, &["quantization_config"]).unwrap_err();
    assert!(error.contains("logit_scale"), "{error}");
    let model = open_allowing(&folder, &["logit_scale", "quantization_config"]).unwrap();
    assert_eq!(model.ignored_keys(), ["logit_scale", "quantization_config"]);
    assert_eq!(model.facts, open(&committed("llama32_tied")).facts);
    for (key, words) in [
        ("residual_multiplier", "--allow-key residual_multiplier: config.json has no such key"),
        ("vocab_size", "--allow-key vocab_size: architecture llama reads this key"),
        ("rope_scaling", "reads this key"),
    ] {
        let error = open_allowing(&folder, &["logit_scale", "quantization_config", key]).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// Writes a GGUF of a tiny Llama with these further pairs.
fn tiny_gguf(path: &Path, further: &[(&str, MetadataValue)]) {
    let mut metadata = Metadata::new();
    let pairs = [
        ("general.architecture", MetadataValue::String("llama".to_owned())),
        ("llama.embedding_length", MetadataValue::U32(16)),
        ("llama.block_count", MetadataValue::U32(1)),
        ("llama.attention.head_count", MetadataValue::U32(2)),
        ("llama.attention.head_count_kv", MetadataValue::U32(1)),
        ("llama.feed_forward_length", MetadataValue::U32(24)),
        ("llama.context_length", MetadataValue::U32(64)),
        ("llama.attention.layer_norm_rms_epsilon", MetadataValue::F32(1e-5)),
    ];
    for (key, value) in pairs.iter().chain(further) {
        metadata.insert(*key, value.clone()).unwrap();
    }
    let tensors: [(&str, &[usize]); 11] = [
        ("token_embd.weight", &[32, 16]),
        ("output_norm.weight", &[16]),
        ("blk.0.attn_norm.weight", &[16]),
        ("blk.0.attn_q.weight", &[16, 16]),
        ("blk.0.attn_k.weight", &[8, 16]),
        ("blk.0.attn_v.weight", &[8, 16]),
        ("blk.0.attn_output.weight", &[16, 16]),
        ("blk.0.ffn_norm.weight", &[16]),
        ("blk.0.ffn_gate.weight", &[24, 16]),
        ("blk.0.ffn_up.weight", &[24, 16]),
        ("blk.0.ffn_down.weight", &[16, 24]),
    ];
    let new = |(name, shape): &(&str, &[usize])| NewTensor {
        name: (*name).to_owned(),
        dtype: DType::F32,
        shape: Shape::new(shape).unwrap(),
    };
    let tensors: Vec<NewTensor> = tensors.iter().map(new).collect();
    let mut writer = ContainerWriter::gguf(path, &metadata, &tensors).unwrap();
    for tensor in &tensors {
        writer.append(&tensor.name, &vec![0; tensor.shape.elements() * 4]).unwrap();
    }
    writer.finish().unwrap();
}

/// Opens the tiny Llama with these further pairs.
fn gguf_with(label: &str, further: &[(&str, MetadataValue)]) -> Result<ModelFiles, String> {
    let path = empty_folder(&format!("keys-gguf-{label}")).join("model.gguf");
    tiny_gguf(&path, further);
    open_allowing(&path, &[])
}

#[test]
fn keys_of_a_gguf_that_nobody_reads_are_refused() {
    let text = |text: &str| MetadataValue::String(text.to_owned());
    let refused = [
        ("llama.attention.causal", MetadataValue::Bool(false), "llama.attention.causal"),
        ("llama.expert_used_count", MetadataValue::U32(8), "llama.expert_used_count"),
        ("llama.rope.dimension_count", MetadataValue::U32(4), "llama.rope.dimension_count"),
        ("llama.attention.value_length", MetadataValue::U32(4), "llama.attention.value_length"),
        (
            "llama.vocab_size",
            MetadataValue::U32(31),
            "'llama.vocab_size' is 31, but the embedding table has 32",
        ),
        ("llama.logit_scale", MetadataValue::F32(0.5), "llama.logit_scale"),
        ("llama.residual_scale", MetadataValue::F32(0.22), "llama.residual_scale"),
        ("llama.attention.scale", MetadataValue::F32(0.1), "llama.attention.scale"),
        ("llama.rope.scaling.yarn_ext_factor", MetadataValue::F32(0.5), "yarn_ext_factor"),
        ("llama.rope.scale_linear", MetadataValue::F32(2.0), "scale_linear"),
        (
            "llama.rope.dimension_sections",
            MetadataValue::Array(MetadataArray::I32(vec![1, 1, 1, 1])),
            "an array of 4",
        ),
        ("llama.strange", text("x"), "GGUF sets 'llama.strange' to the string 'x', which architecture llama"),
        ("adapter.type", text("lora"), "adapter.type"),
        ("general.type", text("adapter"), "general.type"),
    ];
    for (index, (key, value, words)) in refused.into_iter().enumerate() {
        match gguf_with(&format!("refused-{index}"), &[(key, value)]) {
            Ok(_) => panic!("opens with {key}"),
            Err(error) => assert!(error.contains(words), "{key}: {error}"),
        }
    }
    let two = [
        ("llama.attention.key_length", MetadataValue::U32(8)),
        ("llama.attention.value_length", MetadataValue::U32(4)),
    ];
    let error = gguf_with("two", &two).unwrap_err();
    assert!(error.contains("equal values are needed"), "{error}");
}

#[test]
fn keys_of_a_gguf_that_change_no_number_are_accepted() {
    let facts = gguf_with("plain", &[]).unwrap().facts;
    let accepted = [
        ("general.type", MetadataValue::String("model".to_owned())),
        ("general.strange", MetadataValue::U32(1)),
        ("quantize.imatrix.file", MetadataValue::String("a".to_owned())),
        ("llama.attention.causal", MetadataValue::Bool(true)),
        ("llama.expert_count", MetadataValue::U32(0)),
        ("llama.rope.dimension_count", MetadataValue::U32(8)),
        ("llama.attention.value_length", MetadataValue::U32(8)),
        ("llama.vocab_size", MetadataValue::U32(32)),
        ("llama.rope.freq_base", MetadataValue::F32(1e4)),
        ("llama.rope.scaling.factor", MetadataValue::F32(1.0)),
        ("llama.rope.scaling.original_context_length", MetadataValue::U32(32)),
    ];
    assert_eq!(gguf_with("accepted", &accepted).unwrap().facts, facts);
}

#[test]
fn a_list_of_a_gguf_needs_a_size_for_each_layer() {
    let text = "name = 'listed'\nbased_on = 'llama'\nmatch.gguf = ['llama']\nffn.size = { gguf = 'llama.sizes', by_layer = true }";
    let opened = |label: &str, list: MetadataArray| {
        let path = empty_folder(&format!("keys-list-{label}")).join("model.gguf");
        tiny_gguf(&path, &[("llama.sizes", MetadataValue::Array(list))]);
        let options = ArchOptions {
            architectures: vec![arch::schema::parse(text).unwrap()],
            allow_keys: vec!["llama.feed_forward_length".to_owned()],
        };
        ModelFiles::open(&path, options, &ModelLimits::DEFAULT).map_err(|error| error.to_string())
    };
    for (label, list) in [("u32", MetadataArray::U32(vec![24])), ("i32", MetadataArray::I32(vec![24]))] {
        assert_eq!(opened(label, list).unwrap().facts.layers[0].ffn.size(), Some(24));
    }
    for (label, list, words) in [
        ("long", MetadataArray::U32(vec![24, 24]), "is a list of length 2; 1 sizes from 0 to 2147483647"),
        ("negative", MetadataArray::I32(vec![-24]), "is a list of length 1; 1 sizes"),
        ("large", MetadataArray::U32(vec![1 << 31]), "is a list of length 1; 1 sizes"),
        ("float", MetadataArray::F32(vec![24.0]), "is a list of length 1; 1 sizes"),
        ("zero", MetadataArray::U32(vec![0]), "lists 0 for layer 0, which needs a positive ffn.size"),
    ] {
        let error = opened(label, list).unwrap_err();
        assert!(error.contains(words), "{label}: {error}");
    }
}

#[test]
fn a_factor_without_a_type_is_linear_as_in_llama_cpp() {
    let model = gguf_with("linear", &[("llama.rope.scaling.factor", MetadataValue::F32(4.0))]).unwrap();
    let Mixer::Attend(attend) = &model.facts.layers[0].mixer else { panic!("it attends") };
    assert_eq!(attend.rope.as_ref().unwrap().factors, [4.0; 4]);
}

/// The pairs of 8 components, of which 64 positions turn the first one 10 times and the others once or less.
#[test]
fn yarn_of_a_gguf_divides_slow_pairs_and_has_an_attention_factor() {
    let yarn = |label: &str, further: &[(&str, MetadataValue)]| {
        let text = |text: &str| MetadataValue::String(text.to_owned());
        let mut pairs = vec![
            ("llama.rope.scaling.type", text("yarn")),
            ("llama.rope.scaling.factor", MetadataValue::F32(4.0)),
        ];
        pairs.extend(further.iter().cloned());
        let model = gguf_with(&format!("yarn-{label}"), &pairs).unwrap();
        let Mixer::Attend(attend) = &model.facts.layers[0].mixer else { panic!("it attends") };
        attend.rope.clone().unwrap()
    };
    let plain = yarn("plain", &[]);
    assert_eq!(plain.factor, Some((0.1 * 4f64.ln() + 1.0) as f32));
    assert_eq!((plain.factors[0], plain.factors[3], plain.factors.len()), (1.0, 4.0, 4));
    let stated = yarn("stated", &[("llama.rope.scaling.yarn_attn_factor", MetadataValue::F32(1.5))]);
    assert_eq!((stated.factor, &stated.factors), (Some(1.5), &plain.factors));
    let cancelled = yarn("cancelled", &[("llama.rope.scaling.yarn_log_multiplier", MetadataValue::F32(1.0))]);
    assert_eq!((cancelled.factor, &cancelled.factors), (None, &plain.factors));
    let slow = yarn("slow", &[("llama.rope.scaling.yarn_beta_slow", MetadataValue::F32(0.01))]);
    assert_ne!(slow.factors, plain.factors);
    let longer = yarn("longer", &[("llama.rope.scaling.original_context_length", MetadataValue::U32(4096))]);
    assert_ne!(longer.factors, plain.factors);
}

#[test]
fn configurations_of_published_models_are_accepted() {
    let Some(data) = crate::data::folder() else { return };
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "tie_word_embeddings",
        "max_position_embeddings",
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
    ];
    for (fixture, file, published) in [
        ("llama32_tied", "config.json", "transcribed/Llama-3.2-1B-Instruct.config.json"),
        ("llama32_tied", "config.json", "transcribed/Llama-3.2-3B-Instruct.config.json"),
        ("llama32_tied", "config.json", "iShrink/Llama-3.2-1B-Instruct/config.json"),
        ("qwen3", "config.json", "transcribed/Qwen3-0.6B.config.json"),
        ("qwen3", "config.json", "transcribed/Qwen3-Embedding-0.6B.config.json"),
        ("gemma3_text", "config.json", "gemma-3-1b-it/config.json"),
        ("gemma3_vision", "config.json", "transcribed/gemma-3-4b-it.config.json"),
        ("bert", "config.json", "transcribed/bge-small-en-v1.5.config.json"),
        ("nomic_bert", "config.hub.json", "transcribed/nomic-embed-text-v1.5.config.json"),
    ] {
        let read = |path: &Path| serde_json::from_slice::<Json>(&std::fs::read(path).unwrap()).unwrap();
        let small = read(&committed(fixture).join(file));
        let mut config = read(&data.join("configs").join(published));
        for part in ["", "/text_config"] {
            let Some(small) = small.pointer(part) else { continue };
            for size in sizes {
                if let Some(value) = small.get(size) {
                    config.pointer_mut(part).unwrap()[size] = value.clone();
                }
            }
        }
        let label = format!("published-{}", published.replace('/', "-"));
        let opened = open_allowing(&folder(&label, fixture, &config), &[]);
        opened.unwrap_or_else(|error| panic!("{published}: {error}"));
    }
}

/// One line of the table.
fn row(table: &mut String, key: &str, becomes: &str) {
    writeln!(table, "| {key} | {becomes} |").unwrap();
}

fn shown(value: &StatedValue) -> String {
    match value {
        StatedValue::Flag(flag) => flag.to_string(),
        StatedValue::Number(number) => number.to_string(),
        StatedValue::Word(word) => format!("'{word}'"),
    }
}

fn harmless(table: &mut String, keys: impl IntoIterator<Item = (String, HarmlessKey)>) {
    for (key, HarmlessKey { is, why }) in keys {
        let values = match is {
            HarmlessValues::Kind(kind) => format!("{kind:?}").to_lowercase(),
            HarmlessValues::Each(ListOf { each }) => format!("a list of {}", shown(&each)),
            HarmlessValues::Listed(list) if list.is_empty() => "null".to_owned(),
            HarmlessValues::Listed(list) => list.iter().map(shown).collect::<Vec<_>>().join(", "),
        };
        row(table, &format!("`{key}`"), &format!("harmless ({values}): {why}"));
    }
}

/// The table of one architecture.
fn section(arch: &Arch) -> String {
    let mut table = format!("\n## {}\n\n| key | what girih does with it |\n|---|---|\n", arch.name);
    if arch.tower.is_some() {
        let gguf = arch.matches.gguf.join("', '");
        row(&mut table, "`general.architecture`", &format!("read: must be '{gguf}'"));
        let types = arch.matches.projector.join("', '");
        let keys = PROJECTOR_TYPES.map(|key| format!("`{key}`")).join(", ");
        row(&mut table, &keys, &format!("read: one must be '{types}'"));
    } else {
        row(&mut table, "`architectures`, `general.architecture`", "read: chooses this description");
        let types = arch.matches.hf_model_type.join("', '");
        row(&mut table, "`model_type`", &format!("read: must be '{types}'"));
    }
    let mut fixed = Vec::new();
    for ArchParameter { name, field, .. } in arch.parameters() {
        let keys =
            field.hf.iter().chain(field.gguf.as_deref()).chain(field.gguf_also.iter().map(String::as_str));
        let keys: Vec<String> = keys.map(|key| format!("`{key}`")).collect();
        let default = |default: &Option<DefaultValue>| match default {
            Some(DefaultValue::Flag(flag)) => Some(flag.to_string()),
            Some(DefaultValue::Number(number)) => Some(number.to_string()),
            Some(DefaultValue::Word(word)) => Some(word.clone()),
            None => None,
        };
        let (hf, any) = (default(&field.hf_default), default(&field.default));
        let hf = hf.map(|hf| format!("; default in `config.json` {hf}")).unwrap_or_default();
        let any = any.map(|any| format!("; default {any}")).unwrap_or_default();
        if keys.is_empty() {
            fixed.push((name, [any, hf].concat()));
            continue;
        }
        row(&mut table, &keys.join(", "), &format!("read as {name}{hf}{any}"));
    }
    for (name, default) in fixed {
        row(
            &mut table,
            "no key",
            &format!("{name} is the same in all models{}", default.replace("; default", ":")),
        );
    }
    if let Some(listed) = &arch.layers.listed {
        row(&mut table, &format!("`{}`", listed.hf), "read as the kinds of layers");
    }
    for (name, rope) in &arch.rope {
        let Some(scaling) = &rope.scaling else { continue };
        let gguf = scaling.gguf.iter().flat_map(|prefix| GGUF_SCALING.map(|key| format!("{prefix}.{key}")));
        let objects = scaling.hf.iter().map(|path| format!("{path}.*"));
        let keys: Vec<String> = objects.chain(gguf).map(|key| format!("`{key}`")).collect();
        let becomes = format!("read as the scaling of rope.{name}, as far as its `rope_type` goes");
        row(&mut table, &keys.join(", "), &becomes);
    }
    for (key, flag) in &arch.biases {
        let parts = flag.of.join(", ");
        row(&mut table, &format!("`{key}`"), &format!("read: biases of {parts}; default {}", flag.default));
    }
    harmless(&mut table, arch.harmless.clone());
    for (key, excluded) in &arch.refuse {
        let becomes = match excluded {
            ExcludedKey::Set(why) => format!("refused: {why}"),
            ExcludedKey::Never(other) => format!("refused if {}: {}", shown(&other.never), other.why),
            ExcludedKey::Null(other) => format!("refused unless null: {}", other.only_null),
            ExcludedKey::Other(other) => format!("refused unless {}: {}", shown(&other.unless), other.why),
        };
        row(&mut table, &format!("`{key}`"), &becomes);
    }
    table
}

/// `UPDATE=1` writes the document anew.
#[test]
fn the_table_of_keys_is_up_to_date() {
    let mut text = "# Keys of models\n\n\
        An unread key may change the model's numbers. So every key of `config.json` (nested ones by\n\
        their path) and every key of a GGUF's architecture is read, or harmless with its value, or refused by name.\n\
        `--allow-key NAME` ignores a key that would be refused. Null counts as absent, except for keys that transformers refuses as null.\n\
        Keys in neither table are refused: that of the architecture, and that of all architectures.\n\n\
        `UPDATE=1 cargo test -p girih-model table_of_keys` writes this page from `archs/`.\n\n\
        ## All architectures\n\n| key | what girih does with it |\n|---|---|\n"
        .to_owned();
    let shared = shared_keys().unwrap();
    harmless(&mut text, shared.hf);
    harmless(&mut text, shared.gguf.into_iter().map(|(key, entry)| (format!("*.{key}"), entry)));
    for (key, value) in [
        ("*.attention.key_length", "the head size"),
        ("*.attention.value_length", "the head size"),
        ("*.rope.dimension_count", "the rotated components of a head"),
        ("*.attention.causal", "true, for encoders false"),
        ("*.vocab_size", "the rows of the embedding table"),
        ("general.type", "'model', for image towers 'mmproj'"),
    ] {
        row(&mut text, &format!("`{key}`"), &format!("must be {value}"));
    }
    row(&mut text, "`adapter.*`", "refused");
    arch::known(&[]).unwrap().iter().for_each(|arch| text += &section(arch));
    arch::towers().unwrap().iter().for_each(|arch| text += &section(arch));
    let path = committed("../../docs/keys.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/keys.md is not that of archs/: run this test with UPDATE=1");
}
