//! The names of files in a model's folder, as the hub has them.

/// The name of the list of a sharded model's files.
pub const INDEX: &str = "model.safetensors.index.json";

/// The small files that stand beside safetensors.
pub const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    INDEX,
];
