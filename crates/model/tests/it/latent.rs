//! Latent attention: its weights are parts of stored tensors, and contradictions are refused by name.

use girih_graph::WeightSource as _;
use girih_tensor::Shape;
use girih_tensor::random::Random;
use serde_json::{Value as Json, json};

use crate::experts::{Tensors, drawn, floats, open};

const WIDTH: usize = 8;
const HEADS: usize = 2;
const RANK: usize = 6;
const NOPE: usize = 4;
const ROPE: usize = 2;
const VALUES: usize = 3;

fn config() -> Json {
    config_of(RANK, ROPE)
}

/// A model whose latents have these sizes.
pub fn config_of(rank: usize, rope: usize) -> Json {
    json!({
        "architectures": ["YoutuForCausalLM"], "model_type": "youtu", "vocab_size": 16, "hidden_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "intermediate_size": 8, "tie_word_embeddings": true, "rope_theta": 1e4,
        "q_lora_rank": null, "kv_lora_rank": rank, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": rope,
        "v_head_dim": VALUES, "rope_interleave": true,
    })
}

fn tensors() -> Tensors {
    tensors_of(RANK, ROPE)
}

/// The tensors of [`config_of`].
pub fn tensors_of(rank: usize, rope: usize) -> Tensors {
    let at = "model.layers.0";
    drawn(
        9,
        [
            ("model.embed_tokens.weight".to_owned(), vec![16, WIDTH]),
            ("model.norm.weight".to_owned(), vec![WIDTH]),
            (format!("{at}.input_layernorm.weight"), vec![WIDTH]),
            (format!("{at}.post_attention_layernorm.weight"), vec![WIDTH]),
            (format!("{at}.self_attn.q_proj.weight"), vec![HEADS * (NOPE + rope), WIDTH]),
            (format!("{at}.self_attn.kv_a_proj_with_mqa.weight"), vec![rank + rope, WIDTH]),
            (format!("{at}.self_attn.kv_a_layernorm.weight"), vec![rank]),
            (format!("{at}.self_attn.kv_b_proj.weight"), vec![HEADS * (NOPE + VALUES), rank]),
            (format!("{at}.self_attn.o_proj.weight"), vec![WIDTH, HEADS * VALUES]),
            (format!("{at}.mlp.gate_proj.weight"), vec![8, WIDTH]),
            (format!("{at}.mlp.up_proj.weight"), vec![8, WIDTH]),
            (format!("{at}.mlp.down_proj.weight"), vec![WIDTH, 8]),
        ],
    )
}

/// The numbers of a tensor.
fn numbers(tensors: &Tensors, name: &str) -> Vec<f32> {
    let (_, _, bytes) = &tensors[&format!("model.layers.0.self_attn.{name}.weight")];
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn keys_are_transposed_and_values_are_rows_of_heads() {
    let tensors = tensors();
    let model = open("latent", &config(), &tensors, None).unwrap();
    let kv = numbers(&tensors, "kv_b_proj");
    let row = |head: usize, row: usize| &kv[(head * (NOPE + VALUES) + row) * RANK..][..RANK];
    let (mut up, mut values) = (Vec::new(), Vec::new());
    for head in 0..HEADS {
        up.extend((0..RANK).flat_map(|column| (0..NOPE).map(move |key| row(head, key)[column])));
        values.extend((NOPE..NOPE + VALUES).flat_map(|value| row(head, value)).copied());
    }
    let at = |name: &str| format!("layers.0.mixer.{name}.weight");
    assert_eq!(model.weights.numbers(&at("k.up")).unwrap(), up);
    assert_eq!(model.weights.numbers(&at("v.up")).unwrap(), values);
    assert_eq!(model.weights.info(&at("k.up")).unwrap().1, Shape::new(&[HEADS, RANK, NOPE]).unwrap());
    let q = numbers(&tensors, "q_proj");
    let rotated: Vec<f32> = [NOPE, 2 * NOPE + ROPE]
        .iter()
        .flat_map(|first| q[first * WIDTH..(first + ROPE) * WIDTH].iter().copied())
        .collect();
    assert_eq!(model.weights.numbers(&at("q.rope")).unwrap(), rotated);
    assert_eq!(
        model.weights.numbers(&at("k.rope")).unwrap(),
        numbers(&tensors, "kv_a_proj_with_mqa")[RANK * WIDTH..]
    );
    // Parts from any place on.
    let bytes = floats(&up);
    let mut random = Random(3);
    for _ in 0..50 {
        let start = random.below(bytes.len());
        let mut read = vec![0; random.below(bytes.len() - start) + 1];
        model.weights.read(&at("k.up"), start as u64, &mut read).unwrap();
        assert_eq!(read, bytes[start..start + read.len()], "from {start}");
    }
    assert!(model.weights.read(&at("k.up"), bytes.len() as u64, &mut [0]).is_err());
}

#[test]
fn contradictions_are_refused() {
    let refused = |key: &str, value: Json| {
        let mut config = config();
        config[key] = value;
        open("latent-refused", &config, &tensors(), None).map(drop).unwrap_err()
    };
    assert!(refused("num_key_value_heads", json!(1)).contains("needs the number of query heads, 2"));
    assert!(refused("q_lora_rank", json!(5)).contains("states 5 of the latent of queries"));
    assert!(refused("v_head_dim", json!(4)).contains("needed for latent attention"));
    assert!(refused("kv_lora_rank", json!(0)).contains("kv_lora_rank"));
    assert!(refused("qk_nope_head_dim", json!(1_000_000)).contains("the cap is"));
}
