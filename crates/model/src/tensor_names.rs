//! Names of tensors: prefixes of a container, layers, and patterns of names that are not used.

use std::collections::BTreeSet;

use girih_file::{Container, ContainerKind};
use girih_tensor::Result;

use crate::arch::ModelConfig;
use crate::arch::schema::Arch;

/// The prefixes of the architecture's weight names, each with the one that this container has
/// instead.
pub(crate) fn prefixes<'a>(arch: &'a Arch, container: &Container) -> Vec<(&'a str, &'a str)> {
    if container.kind() == ContainerKind::Gguf {
        return Vec::new();
    }
    let occurs = |prefix: &&str| container.tensors().keys().any(|name| name.starts_with(prefix));
    let prefix = arch.matches.hf_prefix.as_deref().filter(occurs);
    let stated = arch.matches.hf_starts.iter().filter_map(|(prefix, others)| {
        Some((prefix.as_str(), others.iter().map(String::as_str).find(occurs)?))
    });
    stated.chain(prefix.map(|prefix| ("", prefix))).collect()
}

/// A name with the prefix that it has in the container.
pub(crate) fn with_prefix(name: &str, prefixes: &[(&str, &str)]) -> String {
    let found = prefixes.iter().find_map(|(prefix, other)| Some((other, name.strip_prefix(prefix)?)));
    found.map_or_else(|| name.to_owned(), |(prefix, rest)| format!("{prefix}{rest}"))
}

/// girih's name and the container's, for each of the layers if the pattern has `{i}`.
pub(crate) fn expand<'a>(
    pattern: &'a str,
    tensor: Option<&'a str>,
    layers: impl Iterator<Item = usize> + 'a,
) -> impl Iterator<Item = (String, Option<String>)> + 'a {
    let of_model = (!pattern.contains("{i}")).then_some(0);
    let layers = layers.filter(move |_| of_model.is_none());
    of_model.into_iter().chain(layers).map(move |i| {
        let at = |text: &str| text.replace("{i}", &i.to_string());
        (at(pattern), tensor.map(at))
    })
}

/// The tensors with factors of rotary frequencies, which facts are made of.
fn factors(arch: &Arch) -> impl Iterator<Item = String> {
    let scalings = arch.rope.values().filter_map(|rope| rope.scaling.as_ref());
    scalings.flat_map(|scaling| [&scaling.factors, &scaling.short, &scaling.long]).flatten().cloned()
}

/// Names, and prefixes of names.
pub(crate) struct NamePatterns {
    names: BTreeSet<String>,
    prefixes: Vec<String>,
}

impl NamePatterns {
    /// The tensors that the architecture ignores. `{d}` in a name stands for each layer that drafts tokens.
    ///
    /// # Errors
    /// If the number of these layers is none.
    pub fn unused(arch: &Arch, container: &Container, layers: usize) -> Result<NamePatterns> {
        let patterns: Vec<String> = match container.kind() {
            ContainerKind::Safetensors | ContainerKind::Iebin => {
                let draft = arch.draft.iter().map(|draft| format!("{}*", draft.start(layers)));
                arch.unused.hf.iter().cloned().chain(draft).collect()
            }
            ContainerKind::Gguf => arch.unused.gguf.iter().cloned().chain(factors(arch)).collect(),
            ContainerKind::Q4nx => arch.unused.hf.iter().cloned().chain(factors(arch)).collect(),
        };
        let drafting = match container.kind() {
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => 0,
            ContainerKind::Gguf => ModelConfig::Gguf(container.metadata()).drafting_layers(arch)?,
        };
        let drafting: Vec<String> = (layers..layers + drafting).map(|layer| layer.to_string()).collect();
        let (of_drafting, others): (Vec<String>, Vec<String>) =
            patterns.into_iter().partition(|pattern| pattern.contains("{d}"));
        let of_drafting =
            of_drafting.iter().flat_map(|pattern| drafting.iter().map(|layer| pattern.replace("{d}", layer)));
        let patterns: Vec<String> = others.into_iter().chain(of_drafting).collect();
        let expanded = patterns.iter().flat_map(|pattern| expand(pattern, None, 0..layers));
        let replaced = prefixes(arch, container);
        let both = expanded.flat_map(|(name, _)| [with_prefix(&name, &replaced), name]);
        let (open, names): (Vec<String>, Vec<String>) = both.partition(|name| name.ends_with('*'));
        let prefixes = open.iter().map(|name| name.trim_end_matches('*').to_owned()).collect();
        Ok(NamePatterns { names: names.into_iter().collect(), prefixes })
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }
}
