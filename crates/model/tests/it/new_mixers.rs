//! Kimi-Linear, Gemma 3n and models that choose positions: what their keys mean, and what contradicts itself.

use girih_model::arch::{Facts, Mixer};
use girih_model::{ModelLimits, ModelShape};
use serde_json::{Value as Json, json};

/// The configuration of a verified model of a family, with these keys; null removes one.
fn config(family: &str, keys: &Json) -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/families.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let mut config = lines.find(|line| line["family"] == family).unwrap()["config"].take();
    let object = config.as_object_mut().unwrap();
    object.extend(keys.as_object().unwrap().clone());
    object.retain(|_, value| !value.is_null());
    config
}

fn parsed(config: &Json) -> Result<Facts, String> {
    let shape = ModelShape::parse(config.to_string().as_bytes(), Vec::new(), &ModelLimits::DEFAULT);
    shape.map(|shape| shape.facts).map_err(|error| error.to_string())
}

fn assert_refused(family: &str, cases: &[(Json, &str)]) {
    parsed(&config(family, &json!({}))).unwrap();
    for (keys, words) in cases {
        let refusal = parsed(&config(family, keys)).unwrap_err();
        assert!(refusal.contains(words), "{keys}: {refusal}");
    }
}

/// Kimi-Linear of four layers as published: an object lists its layers, which count from 1.
fn kimi(full: &[u64], linear: &[u64]) -> Result<Facts, String> {
    let own = json!({
        "head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4, "full_attn_layers": full, "kda_layers": linear,
    });
    let keys = json!({
        "linear_attn_config": own, "layer_types": null, "num_hidden_layers": 4, "mlp_layer_types": null,
        "linear_head_dim": null, "linear_num_heads": null, "linear_conv_kernel_dim": null,
    });
    parsed(&config("kimi_linear", &keys))
}

#[test]
fn published_lists_of_kimi_linear_count_from_one() {
    let facts = kimi(&[4], &[1, 2, 3]).unwrap();
    let kinds: Vec<&str> = facts.layers.iter().map(|layer| layer.kind.as_str()).collect();
    assert_eq!(kinds, ["linear_dense", "linear", "linear", "full"]);
    let Mixer::DeltaRule(delta) = &facts.layers[0].mixer else { panic!("layer 1 has the delta rule") };
    assert_eq!([delta.value_heads, delta.key_size, delta.steps()], [3, 16, 48]);
    assert_eq!(delta.rank, Some(16));
    let attend = facts.layers[3].mixer.attention().unwrap();
    assert!(attend.rope.is_none() && attend.latent.is_some());
    for (full, linear, words) in [
        (&[4][..], &[1, 2][..], "have layer 3 both or neither"),
        (&[4, 1], &[1, 2, 3], "have layer 1 both or neither"),
        (&[5], &[1, 2, 3, 4], "a list of indexes below 5 is needed"),
        (&[0], &[1, 2, 3, 4], "a list of indexes below 5 is needed"),
    ] {
        let refusal = kimi(full, linear).unwrap_err();
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[test]
fn other_forms_of_kimi_linear_are_refused() {
    assert_refused(
        "kimi_linear",
        &[
            (json!({ "mla_use_nope": false }), "'mla_use_nope'"),
            (json!({ "moe_router_activation_func": "softmax" }), "'moe_router_activation_func'"),
            (json!({ "use_grouped_topk": false }), "'use_grouped_topk'"),
            (json!({ "num_nextn_predict_layers": 1 }), "'num_nextn_predict_layers'"),
            (json!({ "layer_types": null, "linear_attn_config": null }), "config.json has no 'layer_types'"),
        ],
    );
}

#[test]
fn other_forms_of_gemma_3n_are_refused() {
    let layers = config("gemma3n_text", &json!({}))["num_hidden_layers"].as_u64().unwrap() as usize;
    assert_refused(
        "gemma3n_text",
        &[
            (json!({ "altup_num_inputs": 2 }), "'altup_num_inputs'"),
            (json!({ "altup_active_idx": 1 }), "'altup_active_idx'"),
            (json!({ "laurel_rank": 1_000_000 }), "'laurel_rank' is 1000000; at most"),
            (json!({ "activation_sparsity_pattern": null }), "'activation_sparsity_pattern' is missing"),
            (
                json!({ "activation_sparsity_pattern": vec![0.5; layers + 1] }),
                "'activation_sparsity_pattern' lists",
            ),
            (json!({ "activation_sparsity_pattern": vec![1.0; layers] }), "lists 1.0 for layer 0"),
        ],
    );
    let facts = parsed(&config("gemma3n_text", &json!({ "altup_correct_scale": false }))).unwrap();
    assert!(!facts.streams.unwrap().scaled);
}

#[test]
fn a_layer_takes_the_choice_of_positions_before_it() {
    let layers = config("glm_moe_dsa", &json!({}))["num_hidden_layers"].as_u64().unwrap() as usize;
    let mut listed = vec!["shared"; layers];
    listed[0] = "full";
    let facts = parsed(&config("glm_moe_dsa", &json!({ "indexer_types": listed }))).unwrap();
    let chooses = |layer: usize| {
        let latent = facts.layers[layer].mixer.attention().unwrap().latent.unwrap();
        latent.indexer.unwrap().chooses
    };
    assert!(chooses(0) && !(1..layers).any(chooses));
    assert_refused(
        "glm_moe_dsa",
        &[
            (json!({ "indexer_types": vec!["shared"; layers] }), "lists 'shared' for layer 0"),
            (json!({ "indexer_types": vec!["half"; layers] }), "lists 'half' for layer 0"),
            (json!({ "indexer_types": null, "index_topk_freq": 4 }), "'index_topk_freq'"),
            (json!({ "indexer_types": null, "index_topk_pattern": "FS" }), "'index_topk_pattern'"),
            (json!({ "index_head_dim": 2 }), "'index_head_dim' is 2; a size from"),
            (json!({ "index_n_heads": 4096 }), "the cap is 1024 heads"),
            (json!({ "layer_types": vec!["full_attention"; layers] }), "'layer_types'"),
        ],
    );
    assert_refused("deepseek_v32", &[(json!({ "q_lora_rank": null }), "needs a latent of queries")]);
}
