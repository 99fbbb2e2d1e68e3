//! Short names of models, as Ollama's users know them, with the repository of the model's vendor.

/// A name without its size stands for the size that Ollama runs.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("all-minilm", "sentence-transformers/all-MiniLM-L6-v2"),
    ("gemma2", "google/gemma-2-9b-it"),
    ("gemma2:2b", "google/gemma-2-2b-it"),
    ("gemma2:9b", "google/gemma-2-9b-it"),
    ("gemma2:27b", "google/gemma-2-27b-it"),
    ("gemma3", "google/gemma-3-4b-it"),
    ("gemma3:270m", "google/gemma-3-270m-it"),
    ("gemma3:1b", "google/gemma-3-1b-it"),
    ("gemma3:4b", "google/gemma-3-4b-it"),
    ("gemma3:12b", "google/gemma-3-12b-it"),
    ("gemma3:27b", "google/gemma-3-27b-it"),
    ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("llama3:8b", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("llama3.1", "meta-llama/Llama-3.1-8B-Instruct"),
    ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct"),
    ("llama3.1:70b", "meta-llama/Llama-3.1-70B-Instruct"),
    ("llama3.2", "meta-llama/Llama-3.2-3B-Instruct"),
    ("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"),
    ("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct"),
    ("mistral", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("mistral:7b", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("nomic-embed-text", "nomic-ai/nomic-embed-text-v1.5"),
    ("qwen2.5", "Qwen/Qwen2.5-7B-Instruct"),
    ("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct"),
    ("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct"),
    ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct"),
    ("qwen2.5:14b", "Qwen/Qwen2.5-14B-Instruct"),
    ("qwen2.5:32b", "Qwen/Qwen2.5-32B-Instruct"),
    ("qwen2.5-coder", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    ("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    ("qwen3", "Qwen/Qwen3-8B"),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B"),
    ("qwen3:4b", "Qwen/Qwen3-4B"),
    ("qwen3:8b", "Qwen/Qwen3-8B"),
    ("qwen3:14b", "Qwen/Qwen3-14B"),
    ("qwen3:32b", "Qwen/Qwen3-32B"),
    ("smollm2", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    ("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ("tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
];

/// The repository that a short name stands for; `:latest` may follow it.
pub fn repository(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(":latest").unwrap_or(name);
    SHORT_NAMES.iter().find(|(short, _)| short.eq_ignore_ascii_case(name)).map(|(_, repo)| *repo)
}

/// All short names.
pub fn all<'a>() -> impl Iterator<Item = &'a str> {
    SHORT_NAMES.iter().map(|(name, _)| -> &'a str { name })
}

#[cfg(test)]
mod tests {
    use girih_hub::ModelId;

    use super::*;

    #[test]
    fn every_short_name_stands_for_an_id_and_only_once() {
        for (name, repo) in SHORT_NAMES {
            assert!(ModelId::parse(repo).is_ok() && ModelId::parse(name).is_err(), "{name}");
            assert_eq!(all().filter(|other| other == name).count(), 1, "{name}");
        }
        assert_eq!(repository("Qwen3:0.6B"), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(repository("llama3.2:latest"), repository("llama3.2:3b"));
        assert_eq!(repository("qwen3:0.5b"), None);
    }
}
