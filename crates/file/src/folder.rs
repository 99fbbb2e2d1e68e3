//! The names of the files in a model's folder, as on the hub.

use std::path::Path;

use crate::identity::FileIdentity;

/// The index of a sharded safetensors model.
pub const SAFETENSORS_INDEX: &str = "model.safetensors.index.json";

/// The small files that accompany safetensors files. A pooling module lies in the folder that
/// sentence-transformers gives it.
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
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    SAFETENSORS_INDEX,
];

/// A text that differs when one of a model's small files does, without reading them.
pub fn companions_version(folder: &Path) -> String {
    let line = |name: &&str| {
        FileIdentity::at(&folder.join(name)).map_or_else(|_| "-".to_owned(), |it| it.to_string())
    };
    COMPANIONS.iter().map(line).collect::<Vec<_>>().join("\n")
}
