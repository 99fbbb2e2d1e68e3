//! The descriptions that girih ships with, as text.

use girih_tensor::Result;

use super::schema::{Arch, parse};

/// Names of files of `archs/`, each with its text.
macro_rules! texts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../archs/", $name, ".toml")))),*]
    };
}

/// The descriptions of models, in the order in which they are tried.
pub(super) const SHIPPED: &[(&str, &str)] = texts![
    // Before Llama, whose name in GGUF it also has.
    "mistral",
    "mixtral",
    "llama",
    "ministral",
    "ministral3",
    "mistral3",
    "ministral3_vision",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_vision",
    "gemma3n",
    "gemma3n_vision",
    "gemma4",
    "gemma4_vision",
    "gemma4_assistant",
    "helium",
    "ernie4_5",
    "ernie4_5_moe",
    "dots1",
    "solar_open",
    "sarvam_moe",
    "seed_oss",
    "phi",
    "phi3",
    "phi4_multimodal",
    "phimoe",
    "glm",
    "glm4",
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "glm4_moe_lite",
    "mistral4",
    "mistral4_vision",
    "kimi_k25",
    "kimi_linear",
    "minicpm3",
    "youtu",
    "sarvam_mla",
    "axk1",
    "smollm3",
    "internlm3",
    "internlm3_llama",
    "stablelm",
    "nemotron",
    "gpt_neox",
    "gptj",
    "exaone4",
    "lfm2",
    "lfm2_moe",
    "qwen3_5",
    "qwen3_5_vision",
    "qwen3_5_moe",
    "qwen3_5_moe_vision",
    "qwen3_next",
    "olmo_hybrid",
    "lfm3",
    "lfm3_vl",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "bamba",
    "mamba2",
    "nemotron_h",
    "nemotron_h_moe",
    "granite_swa",
    "granitemoe_swa",
    "cohere",
    "cohere2",
    "olmo",
    // Before OLMo 2, whose name in GGUF it also has.
    "olmo3",
    "olmo2",
    "olmoe",
    "flex_olmo",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "exaone",
    "muse_glimmer",
    "llama4",
    "llama4_vision",
    "minimax_m2",
    "starcoder2",
    "arcee",
    "apertus",
    "hyperclovax",
    "iquestcoder",
    "jais2",
    "vaultgemma",
    "gpt_oss",
    "laguna",
    "step3p7",
    "mimo_v2_flash",
    "nanochat",
    "flint",
    "falcon_h1",
    "zamba2",
    "afmoe",
    "hy_v3",
    "mellum",
    "exaone_moe",
    "cohere2_moe",
    "gpt2",
    "gpt_bigcode",
    "opt",
    "bert",
    "nomic_bert",
];

/// The descriptions of image towers. A model names its tower, so these match no model.
const TOWERS: &[(&str, &str)] = texts!["gemma3_tower"];

/// What several descriptions have in common; these match no model.
const COMMON: &[(&str, &str)] = texts!["decoder", "experts", "sigmoid_router", "latent", "ssm", "siglip"];

/// The descriptions of image towers.
///
/// # Errors
/// When one is malformed, which a test excludes.
pub fn towers() -> Result<Vec<Arch>> {
    TOWERS.iter().map(|(_, text)| parse(text)).collect()
}

/// The text of a description that girih ships with.
pub fn text_of(name: &str) -> Option<&'static str> {
    SHIPPED.iter().chain(TOWERS).chain(COMMON).find(|(known, _)| *known == name).map(|(_, text)| *text)
}
