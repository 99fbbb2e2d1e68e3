//! Keys and values of earlier layers, and sizes by layer: what contradicts itself is refused, by its key.

use girih_model::{ModelLimits, ModelShape};
use serde_json::{Value as Json, json};

use crate::light::{committed, open};

/// Why a Gemma 4 with these keys is refused.
fn refusal(keys: Json) -> String {
    let text = std::fs::read(committed("gemma4").join("config.v5.json")).unwrap();
    let mut config: Json = serde_json::from_slice(&text).unwrap();
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let error = ModelShape::parse(config.to_string().as_bytes(), Vec::new(), &ModelLimits::DEFAULT);
    error.map(drop).unwrap_err().to_string()
}

#[test]
fn last_layers_read_the_keys_of_the_last_layer_of_their_kind() {
    let model = open(&committed("gemma4"));
    let of = |layer: usize| model.facts.layers[layer].mixer.attention().unwrap().values.of_layer;
    assert_eq!([0, 1, 2, 3].map(of), [None, None, Some(0), Some(1)]);
    assert!(model.weights.info("layers.2.mixer.k.weight").is_none());
    let sizes = model.facts.layers.iter().map(|layer| layer.ffn.size());
    assert_eq!(sizes.collect::<Vec<_>>(), [40, 40, 80, 80].map(Some));
}

#[test]
fn contradictions_are_refused() {
    let (local, full) = ("sliding_attention", "full_attention");
    let rope = json!({ full: { "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25 } });
    for (keys, words) in [
        (json!({ "num_kv_shared_layers": 5 }), "'num_kv_shared_layers' is 5; at most 4"),
        (json!({ "num_kv_shared_layers": 4 }), "an earlier local layer that has them is needed"),
        (json!({ "layer_types": [local, full, local, local] }), "needs one that is full"),
        (json!({ "per_layer_config": { "4": { "head_dim": 16 } } }), "'per_layer_config' is"),
        (json!({ "per_layer_config": { "0": {}, "00": {} } }), "'per_layer_config' is"),
        (json!({ "per_layer_config": { "0": { "head_dim": 1.5 } } }), "'head_dim' of layer 0 to 1.5"),
        (json!({ "use_bidirectional_attention": "all" }), "'use_bidirectional_attention'"),
        (
            json!({ "layer_types": [full, local, local, full], "rope_parameters": rope }),
            "'proportional' is needed",
        ),
    ] {
        let refusal = refusal(keys.clone());
        assert!(refusal.contains(words), "{keys}: {refusal}");
    }
}
