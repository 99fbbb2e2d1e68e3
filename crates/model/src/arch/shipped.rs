//! The descriptions that girih ships with, as text.

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
    "gemma4",
    "gemma4_vision",
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
    "lfm3",
    "lfm3_vl",
    "granite",
    "granitemoe",
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

/// What several descriptions have in common; these match no model.
const COMMON: &[(&str, &str)] = texts!["decoder", "experts", "sigmoid_router"];

/// The text of a description that girih ships with.
pub fn text_of(name: &str) -> Option<&'static str> {
    SHIPPED.iter().chain(COMMON).find(|(known, _)| *known == name).map(|(_, text)| *text)
}
