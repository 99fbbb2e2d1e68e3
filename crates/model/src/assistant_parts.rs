//! What an assistant's graph and its files have in common.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};

use crate::arch::{AttentionFacts, Facts};

/// The name of the table of the model's embedding, which is not among the assistant's weights.
pub(crate) const TARGET_TABLE: &str = "target.embed.table";

/// The first layer of each kind of an assistant's layers, by the kind.
pub(crate) fn first_of_kinds(facts: &Facts) -> Result<BTreeMap<&str, &AttentionFacts>> {
    let mut kinds = BTreeMap::new();
    for layer in &facts.layers {
        let attend = layer.mixer.attention().filter(|attend| attend.values.of_model);
        let attend = attend.ok_or_else(|| {
            Error::new(format!("layers of kind '{}' have no keys and values of another model", layer.kind))
        })?;
        kinds.entry(layer.kind.as_str()).or_insert(attend);
    }
    Ok(kinds)
}
