//! Architectures as data: parses the descriptions in `archs/`, finds the one
//! that matches a model, and makes facts from it and the model's parameters.

mod config;
mod facts;
mod fill;
mod rope;
pub mod schema;

pub use config::ModelConfig;
pub use facts::{
    AttentionFacts, Biases, EmbedFacts, Facts, Ffn, Head, LayerFacts, Mixer, ModelSizes, NormFacts, Norms,
    PoolingFacts, Rope,
};
pub use fill::act;
pub(crate) use fill::{Stored, fill};
pub(crate) use rope::frequencies;
pub use schema::{Arch, NormKind, NormPosition};

use girih_file::{quote, shorten};
use girih_tensor::{Error, Result};

/// The maximum number of a model's architectures that an error names.
const NAMED: usize = 5;

/// The descriptions that girih ships with.
const SHIPPED: &[&str] = &[
    include_str!("../../../../archs/llama.toml"),
    include_str!("../../../../archs/qwen3.toml"),
    include_str!("../../../../archs/gemma3.toml"),
    include_str!("../../../../archs/bert.toml"),
    include_str!("../../../../archs/nomic_bert.toml"),
];

/// All known architectures: `given`, then the shipped ones.
///
/// # Errors
/// When a shipped description is malformed, which a test excludes.
pub fn known(given: Vec<Arch>) -> Result<Vec<Arch>> {
    let shipped = SHIPPED.iter().map(|text| schema::parse(text));
    given.into_iter().map(Ok).chain(shipped).collect()
}

/// The architecture of a model.
///
/// # Errors
/// When no description matches; the error lists the known ones.
pub fn find<'a>(known: &'a [Arch], config: &ModelConfig<'_>) -> Result<&'a Arch> {
    let names = config.architectures()?;
    let found = known.iter().find(|arch| {
        let matches = if config.is_gguf() { &arch.matches.gguf } else { &arch.matches.hf };
        names.iter().any(|name| matches.contains(name))
    });
    found.ok_or_else(|| {
        let all = known
            .iter()
            .flat_map(|arch| if config.is_gguf() { &arch.matches.gguf } else { &arch.matches.hf });
        let all: Vec<&str> = all.map(String::as_str).collect();
        Error::new(format!(
            "unknown architecture {}; known: {}; describe another in a file and pass it with --arch",
            shorten(names.iter().take(NAMED).map(|name| quote(name)).collect::<Vec<_>>().join(", ")),
            all.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_descriptions_are_valid() {
        let arches = known(Vec::new()).unwrap();
        let names: Vec<&str> = arches.iter().map(|arch| arch.name.as_str()).collect();
        assert_eq!(names, ["llama", "qwen3", "gemma3", "bert", "nomic_bert"]);
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let text = SHIPPED[0].replace("[head]", "[head]\ncolour = 3");
        assert!(schema::parse(&text).unwrap_err().to_string().contains("colour"));
    }
}
