//! Opens any bytes as the weights of models with valid configurations.
#![no_main]

use girih_model::fuzz;
use libfuzzer_sys::fuzz_target;

const LLAMA: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5}"#;

/// Gemma stores norm weights as w − 1.
const GEMMA: &[u8] = br#"{"architectures": ["Gemma3ForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "sliding_window": 16, "query_pre_attn_scalar": 4,
    "hidden_activation": "gelu_pytorch_tanh"}"#;

fuzz_target!(|bytes: &[u8]| {
    for config in [LLAMA, GEMMA] {
        fuzz::safetensors_model(bytes.to_vec(), config, Vec::new());
    }
});
