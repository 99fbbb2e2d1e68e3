//! The model of an invented architecture whose layers differ, written as safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use girih_file::{ContainerWriter, NewTensor};
use girih_model::arch::{Arch, schema};
use girih_tensor::random::Random;
use girih_tensor::{DType, Shape};
use serde_json::{Value as Json, json};

/// The hidden size.
pub const WIDTH: usize = 16;

/// The number of tokens that the model knows.
pub const VOCABULARY: usize = 32;

/// The sizes of a layer.
#[derive(Clone, Copy)]
pub struct LayerSizes {
    pub kind: &'static str,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub ffn: usize,
}

/// The layers.
pub const LAYERS: [LayerSizes; 4] = [
    LayerSizes { kind: "near", heads: 4, kv_heads: 2, head_size: 4, ffn: 20 },
    LayerSizes { kind: "far", heads: 2, kv_heads: 1, head_size: 8, ffn: 24 },
    LayerSizes { kind: "near", heads: 2, kv_heads: 2, head_size: 4, ffn: 12 },
    LayerSizes { kind: "wide", heads: 3, kv_heads: 1, head_size: 10, ffn: 40 },
];

/// The description of the architecture.
pub fn architecture() -> Arch {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/archs/layered.toml");
    schema::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The model's `config.json`.
pub fn config() -> Json {
    let of_layers = |of: fn(&LayerSizes) -> usize| LAYERS.iter().map(of).collect::<Vec<_>>();
    json!({
        "architectures": ["LayeredForCausalLM"], "model_type": "layered", "hidden_size": WIDTH, "vocab_size": VOCABULARY,
        "num_hidden_layers": LAYERS.len(), "layer_types": ["sliding", "full", "sliding", "wide"],
        "num_attention_heads": of_layers(|layer| layer.heads), "num_key_value_heads": of_layers(|layer| layer.kv_heads),
        "intermediate_size": of_layers(|layer| layer.ffn), "near_head_dim": 4, "head_dim": 8, "wide_head_dim": 10,
        "max_position_embeddings": 64, "sliding_window": 3, "rms_norm_eps": 1e-5, "far_norm_eps": 1e-3,
        "rope_theta": 1000.0, "near_rope_theta": 100.0, "wide_scale_of": 25.0, "wide_query_factor": 1.5, "wide_post_norm_eps": 0.25, "near_softcap": 2.5, "near_bias": true,
        "tie_word_embeddings": true,
    })
}

/// Writes the model to a folder. The weights are drawn from a seed.
pub fn write(folder: &Path) {
    std::fs::write(folder.join("config.json"), config().to_string()).unwrap();
    let mut random = Random(7);
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let count = shape.iter().product();
        let values = random.numbers(count).into_iter();
        // Norms are about 1, so that no layer vanishes.
        let values = if name.contains("norm.weight") || name.contains("layernorm") {
            values.map(|value| 1.0 + 0.25 * value).collect()
        } else {
            values.map(|value| 0.5 * value).collect()
        };
        tensors.insert(name, (shape.to_vec(), values));
    };
    add("model.embed_tokens.weight".to_owned(), &[VOCABULARY, WIDTH]);
    add("model.norm.weight".to_owned(), &[WIDTH]);
    for (index, layer) in LAYERS.iter().enumerate() {
        let LayerSizes { kind, heads, kv_heads, head_size, ffn } = *layer;
        let at = format!("model.layers.{index}");
        add(format!("{at}.self_attn.q_proj.weight"), &[heads * head_size, WIDTH]);
        add(format!("{at}.self_attn.k_proj.weight"), &[kv_heads * head_size, WIDTH]);
        add(format!("{at}.self_attn.v_proj.weight"), &[kv_heads * head_size, WIDTH]);
        add(format!("{at}.self_attn.o_proj.weight"), &[WIDTH, heads * head_size]);
        add(format!("{at}.mlp.up_proj.weight"), &[ffn, WIDTH]);
        add(format!("{at}.mlp.down_proj.weight"), &[WIDTH, ffn]);
        if kind != "near" {
            add(format!("{at}.mlp.gate_proj.weight"), &[ffn, WIDTH]);
            add(format!("{at}.mixed_norm.weight"), &[WIDTH]);
            add(format!("{at}.fed_norm.weight"), &[WIDTH]);
        }
        if kind == "far" {
            add(format!("{at}.mixed_norm.bias"), &[WIDTH]);
            add(format!("{at}.fed_norm.bias"), &[WIDTH]);
        } else {
            add(format!("{at}.input_layernorm.weight"), &[WIDTH]);
            add(format!("{at}.post_attention_layernorm.weight"), &[WIDTH]);
        }
        if kind != "wide" {
            let normed = |heads: usize| if kind == "far" { heads * head_size } else { head_size };
            add(format!("{at}.self_attn.q_norm.weight"), &[normed(heads)]);
            add(format!("{at}.self_attn.k_norm.weight"), &[normed(kv_heads)]);
        }
        if kind == "near" {
            add(format!("{at}.self_attn.q_proj.bias"), &[heads * head_size]);
        }
    }
    let news: Vec<NewTensor> = tensors
        .iter()
        .map(|(name, (shape, _))| NewTensor {
            name: name.clone(),
            dtype: DType::F32,
            shape: Shape::new(shape).unwrap(),
        })
        .collect();
    let path = folder.join("model.safetensors");
    let mut writer = ContainerWriter::safetensors(&path, &BTreeMap::new(), &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let bytes: Vec<u8> = tensors[&name].1.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.append(&name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}
